// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/test/apitest"
)

var _ orphan.Pods = (*nodePods)(nil)

// TestPodsNow: a list of the pods of this node and of no other, with the annotation of a static pod's mirror. If there
// is no list it is an error, so that no pod is taken for gone.
func TestPodsNow(t *testing.T) {
	t.Parallel()
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			env := start(t)
			config := env.Config
			if version == apitest.Version() {
				config = impersonate(installDefault(t).Config, serviceAccount("kubediag-agent")) // what it may is enough
			}
			live, err := client.New(config, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			here := "now-here-" + strings.ReplaceAll(version, ".", "-") // the API server of both is one
			for name, node := range map[string]string{here + "-1": here, here + "-2": here, here + "-not": "now-there"} {
				p := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Annotations: map[string]string{"kubernetes.io/config.hash": name}},
					Spec: corev1.PodSpec{
						NodeName: node, Containers: []corev1.Container{{Name: "app", Image: "image"}}, TerminationGracePeriodSeconds: new(int64),
					},
				}
				env.MustCreate(t, p)
				if node == here {
					want[string(p.UID)] = name
				}
			}
			got, err := (&nodePods{node: here, live: live}).PodsNow(t.Context())
			if err != nil || len(got) != len(want) {
				t.Fatalf("%d pods, %v, want %d", len(got), err, len(want))
			}
			for _, p := range got {
				if want[string(p.UID)] != p.Name || p.Annotations["kubernetes.io/config.hash"] != p.Name || p.Namespace != metav1.NamespaceDefault {
					t.Errorf("%+v", p)
				}
			}
			// Page by page they are the same, and there are several pages.
			if paged, err := (&nodePods{node: here, live: live}).listNow(t.Context(), 1); err != nil || !reflect.DeepEqual(paged, got) {
				t.Errorf("page by page: %+v, %v, want %+v", paged, err, got)
			}
			stopped, stop := context.WithCancel(t.Context())
			stop()
			if got, err := (&nodePods{node: here, live: live}).PodsNow(stopped); err == nil || len(got) > 0 {
				t.Errorf("no list: %+v, %v", got, err)
			}
		})
	}
}
