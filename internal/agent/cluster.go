// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubeclient"
)

// newManager makes the controller-runtime manager of the agent: one that sees this node's work and nothing else.
func newManager(rest *rest.Config, o options, freshness *guard.Freshness) (manager.Manager, error) {
	caching := cacheOptions(o.NodeName)
	caching.NewInformer = observeFreshness(freshness)
	return kubeclient.New(rest, manager.Options{
		Cache:                  caching,
		Client:                 client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&coordinationv1.Lease{}}}},
		Metrics:                server.Options{BindAddress: o.MetricsBindAddress},
		HealthProbeBindAddress: o.HealthProbeBindAddress,
	})
}

// observeFreshness makes informers as a cache does by default, and has those of RecoveryPolicies recorded.
func observeFreshness(f *guard.Freshness) func(toolscache.ListerWatcher, runtime.Object, time.Duration,
	toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(lw toolscache.ListerWatcher, of runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		if _, ok := of.(*v1.RecoveryPolicy); ok {
			lw = f.Follow(lw)
		}
		return toolscache.NewSharedIndexInformer(lw, of, resync, by)
	}
}

// cacheOptions restrict the cache to the Diagnoses and the Pods of one node. Operations, OperationSets and
// RecoveryPolicies are few.
func cacheOptions(node string) cache.Options {
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1.Diagnosis{}: {
				Label: labels.SelectorFromSet(labels.Set{v1.LabelNode: v1.NodeLabelValue(node)}), Transform: reduceObject,
			},
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", node), Transform: reduceObject},
		},
	}
}

// reduceObject keeps of an object what the agent reads from its cache. A run reads its Diagnosis from the API server, and has its
// parameters and its status from there.
func reduceObject(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return extract.Pod(o), nil
	case *v1.Diagnosis:
		kubeclient.ReduceMetadata(&o.ObjectMeta)
		o.Spec.Parameters = nil
		o.Status = v1.DiagnosisStatus{Phase: o.Status.Phase, Outcome: o.Status.Outcome, CompletionTime: o.Status.CompletionTime}
	}
	return object, nil // else a tombstone
}
