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
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/linux/kerneltest"
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

// volumeServer is an API server with one volume's objects. Those that are nil are not there.
type volumeServer struct {
	client.Reader
	driver     *storagev1.CSIDriver
	attachment *storagev1.VolumeAttachment
	node       *corev1.Node
	failing    string // the kind that it does not answer for
}

func (s *volumeServer) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	there, kind := false, ""
	switch to := into.(type) {
	case *storagev1.CSIDriver:
		if there, kind = s.driver != nil, "CSIDriver"; there {
			*to = *s.driver
		}
	case *storagev1.VolumeAttachment:
		if there, kind = s.attachment != nil, "VolumeAttachment"; there {
			*to = *s.attachment
		}
	case *corev1.Node:
		if there, kind = s.node != nil, "Node"; there {
			*to = *s.node
		}
	}
	switch {
	case kind == s.failing:
		return errors.New("no route to the API server")
	case !there:
		return apierrors.NewNotFound(corev1.Resource("objects"), key.Name)
	}
	return nil
}

// TestWhyStaged: only a driver that needs attachments, on a node whose volumes controllers attach, without the volume, cannot have it staged.
func TestWhyStaged(t *testing.T) {
	t.Parallel()
	no := false
	const volume = corev1.UniqueVolumeName("kubernetes.io/csi/d.example.com^h")
	for want, change := range map[string]func(s *volumeServer){
		"":                                 func(*volumeServer) {},
		"there is no CSIDriver":            func(s *volumeServer) { s.driver = nil },
		"needs no attachment":              func(s *volumeServer) { s.driver.Spec.AttachRequired = &no },
		"has VolumeAttachment":             func(s *volumeServer) { s.attachment = &storagev1.VolumeAttachment{} },
		"has no Node":                      func(s *volumeServer) { s.node = nil },
		"may attach volumes by itself":     func(s *volumeServer) { s.node.Annotations = nil },
		"is in volumesInUse":               func(s *volumeServer) { s.node.Status.VolumesInUse = append(s.node.Status.VolumesInUse, volume) },
		"is in volumesAttached":            func(s *volumeServer) { s.node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: volume}} },
		"error: read *v1.CSIDriver":        func(s *volumeServer) { s.failing = "CSIDriver" },
		"error: read *v1.VolumeAttachment": func(s *volumeServer) { s.failing = "VolumeAttachment" },
		"error: read *v1.Node":             func(s *volumeServer) { s.failing = "Node" },
	} {
		s := &volumeServer{driver: &storagev1.CSIDriver{}, node: &corev1.Node{}}
		s.node.Annotations = map[string]string{managedAnnotation: "true"}
		s.node.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d.example.com^another"}
		change(s)
		got, err := (&nodePods{node: "here", live: s}).WhyStaged(t.Context(), "d.example.com", "h")
		if err != nil {
			got = "error: " + err.Error()
		}
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

var must = kerneltest.Must
