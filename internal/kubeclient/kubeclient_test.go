// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// Every kind that is used has its resource, so that no client has to ask for it.
func TestMapper(t *testing.T) {
	t.Parallel()
	mapper, err := newMapper(nil, nil)
	must(t, err)
	scheme, err := NewScheme()
	must(t, err)
	for kind, want := range map[schema.GroupVersionKind]string{
		v1.GroupVersion.WithKind("Diagnosis"): "diagnoses", v1.GroupVersion.WithKind("Operation"): "operations",
		v1.GroupVersion.WithKind("OperationSet"): "operationsets", v1.GroupVersion.WithKind("Trigger"): "triggers",
		v1.GroupVersion.WithKind("RecoveryPolicy"): "recoverypolicies", {Version: "v1", Kind: "Namespace"}: "namespaces",
		v1.GroupVersion.WithKind("MountFault"): "mountfaults", {Version: "v1", Kind: "PersistentVolumeClaim"}: "persistentvolumeclaims",
		{Version: "v1", Kind: "Pod"}: "pods", {Version: "v1", Kind: "Node"}: "nodes",
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}: "leases",
	} {
		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil || m.Resource.Resource != want {
			t.Errorf("resource of %s = %+v, %v", kind, m, err)
		}
		if !scheme.Recognizes(kind) {
			t.Errorf("the scheme does not know %s", kind)
		}
	}
}

// Making a manager asks the API server for nothing.
func TestNewNeedsNoServer(t *testing.T) {
	var got cache.Options
	o := manager.Options{Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"}
	o.NewCache = func(config *rest.Config, o cache.Options) (cache.Cache, error) {
		got = o
		return cache.New(config, o)
	}
	m, err := New(&rest.Config{Host: "https://192.0.2.1"}, o)
	must(t, err)
	if !got.ReaderFailOnMissingInformer {
		t.Error("a read of a kind that is not watched starts a watch of it")
	}
	if limit := m.GetControllerOptions().CacheSyncTimeout; limit != forever {
		t.Errorf("controllers wait %s for their caches", limit)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}}}
	kept, err := got.DefaultTransform(pod)
	if p, ok := kept.(*corev1.Pod); err != nil || !ok || p.ManagedFields != nil || p.Name != "p" {
		t.Errorf("kept %+v, %v", kept, err)
	}
	if features.FeatureGates().Enabled(features.WatchListClient) {
		t.Error("lists are asked for as watch events")
	}
}

// Lists as watch events hang on old servers.
func TestWatchListIsOffUnlessAskedFor(t *testing.T) {
	must(t, withoutWatchList())
	gates := features.FeatureGates().(interface {
		features.Gates
		Set(features.Feature, bool) error
	})
	if gates.Enabled(features.WatchListClient) {
		t.Error("lists would be asked for as watches")
	}
	must(t, gates.Set(features.WatchListClient, true))
	t.Setenv("KUBE_FEATURE_WatchListClient", "true")
	must(t, withoutWatchList())
	if !gates.Enabled(features.WatchListClient) {
		t.Error("the environment asks for lists as watches, and is not heard")
	}
}

var must = kerneltest.Must
