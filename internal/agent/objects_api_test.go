// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/test/apitest"
)

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
	if err != nil {
		t.Fatal(err)
	}
	m, err := newManager(impersonate(env.Config, serviceAccount("kubediag-agent")), options{NodeName: node, MetricsBindAddress: "0", HealthProbeBindAddress: "0"}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
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
