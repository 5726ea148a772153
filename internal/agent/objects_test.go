// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// objectServer is an API server that has an object of each kind and of one name, or answers with an error.
type objectServer struct {
	client.Reader
	name string
	err  error
}

func (s objectServer) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	deadline, ok := ctx.Deadline()
	switch {
	case !ok || time.Until(deadline) > objectTimeout || key.Namespace != "":
		return errors.New("it has no deadline, or a namespace")
	case s.err != nil:
		return s.err
	case key.Name != s.name:
		return apierrors.NewNotFound(corev1.Resource("objects"), key.Name)
	}
	into.SetName(key.Name)
	return nil
}

// TestObjectsByName: an object that is not there is nil, and an error says that it is not known. No request is without a deadline.
func TestObjectsByName(t *testing.T) {
	t.Parallel()
	const attachment = "csi-429ce149860a9d36aaf659909f5bc1b41a9daed24272295add177e0c6ba2d8df"
	for name, read := range map[string]func(p *nodePods) (metav1.Object, error){
		"pv-1": func(p *nodePods) (metav1.Object, error) { return p.PersistentVolume(t.Context(), "pv-1") },
		"d":    func(p *nodePods) (metav1.Object, error) { return p.CSIDriver(t.Context(), "d") },
		attachment: func(p *nodePods) (metav1.Object, error) {
			return p.VolumeAttachment(t.Context(), "rbd.csi.ceph.com", "0001-pool-1")
		},
		"here":          func(p *nodePods) (metav1.Object, error) { return p.CSINode(t.Context()) },
		"here, as node": func(p *nodePods) (metav1.Object, error) { return p.Node(t.Context()) },
	} {
		name, _, _ = strings.Cut(name, ",")
		if got, err := read(&nodePods{node: "here", live: objectServer{name: name}}); err != nil || got.GetName() != name {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got, err := read(&nodePods{node: "here", live: objectServer{name: "another"}}); err != nil || !reflect.ValueOf(got).IsNil() {
			t.Errorf("%s, which is not there: %v, %v", name, got, err)
		}
		if got, err := read(&nodePods{node: "here", live: objectServer{err: errors.New("no route")}}); err == nil || !reflect.ValueOf(got).IsNil() {
			t.Errorf("%s, which is not known: %v, %v", name, got, err)
		}
	}
}
