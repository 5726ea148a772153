// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
			must(t, err)
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

// TestObjectsAsTheAgent reads an object of each kind with the role of the agent and the kinds that it knows.
func TestObjectsAsTheAgent(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	const node, driver, handle, attachment = "objects-node", "objects.example.com", "handle-1",
		"csi-f88ab0a6ca67e0ffb46db72f2b160d5e5a47713ae212eb9ba4510eb3a8b414c5"
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	env.MustCreate(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "objects-pv"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeSource: source,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	})
	storage, pv := apitest.Clientset(t, env.Config).StorageV1(), "objects-pv"
	_, err := storage.CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}}, metav1.CreateOptions{})
	if err == nil {
		_, err = storage.CSINodes().Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = storage.VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: attachment},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}, metav1.CreateOptions{})
	}
	must(t, err)
	m, err := newManager(impersonate(env.Config, serviceAccount("kubediag-agent")), options{NodeName: node, MetricsBindAddress: "0", HealthProbeBindAddress: "0"}, nil, false)
	must(t, err)
	pods := &nodePods{node: node, live: m.GetAPIReader()}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) { // the API server's own view of its roles lags behind them
		if _, err = pods.CSINode(t.Context()); err == nil || time.Now().After(deadline) {
			break
		}
	}
	for kind, read := range map[string]func() (metav1.Object, error){
		"PersistentVolume": func() (metav1.Object, error) { return pods.PersistentVolume(t.Context(), pv) },
		"CSIDriver":        func() (metav1.Object, error) { return pods.CSIDriver(t.Context(), driver) },
		"CSINode":          func() (metav1.Object, error) { return pods.CSINode(t.Context()) },
		"Node":             func() (metav1.Object, error) { return pods.Node(t.Context()) },
		"VolumeAttachment": func() (metav1.Object, error) { return pods.VolumeAttachment(t.Context(), driver, handle) },
	} {
		if got, err := read(); err != nil || got.GetUID() == "" {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
	if got, err := pods.PersistentVolume(t.Context(), "objects-none"); err != nil || got != nil {
		t.Errorf("a PersistentVolume that is not there: %v, %v", got, err)
	}
}
