// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubeclient"
)

// carefulPage is how many objects an agent lists at once after one was killed for memory: with the largest that the API server takes, a page
// has 12 megabytes.
const carefulPage = 8

// newManager makes the controller-runtime manager of the agent. It sees the work of this node and nothing else. If careful is set, it
// lists pods and Diagnoses in pages. The API server reads these from its storage, so agents do so only if they have to.
func newManager(rest *rest.Config, o options, freshness *guard.Freshness, careful bool) (manager.Manager, error) {
	caching := cacheOptions(o.NodeName)
	caching.NewInformer = func(lw toolscache.ListerWatcher, of runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		switch of.(type) {
		case *v1.RecoveryPolicy:
			lw = freshness.Follow(lw)
		case *v1.Diagnosis, *corev1.Pod: // tenants create these
			if careful {
				lw = kubeclient.Pages(lw, carefulPage, reduceObject)
			}
		}
		return toolscache.NewSharedIndexInformer(lw, of, resync, by)
	}
	m, err := kubeclient.New(rest, manager.Options{
		Cache:                  caching,
		Client:                 client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&coordinationv1.Lease{}}}},
		Metrics:                o.Metrics.Plain(o.MetricsBindAddress),
		HealthProbeBindAddress: o.HealthProbeBindAddress,
	})
	if err != nil {
		return nil, err
	}
	return m, o.Metrics.Add(m, o.MetricsBindAddress)
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

// reduceObject keeps the parts of an object that the agent reads from its cache. A run reads its Diagnosis from the API server, and has its
// parameters and its status from there.
func reduceObject(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return extract.Pod(o), nil
	case *v1.Diagnosis:
		kubeclient.ReduceMetadata(&o.ObjectMeta)
		o.Spec.Parameters = nil
		bound := meta.FindStatusCondition(o.Status.Conditions, v1.ConditionBound)
		o.Status = v1.DiagnosisStatus{Phase: o.Status.Phase, Outcome: o.Status.Outcome, CompletionTime: o.Status.CompletionTime}
		if bound != nil {
			o.Status.Conditions = []metav1.Condition{{Type: bound.Type, Status: bound.Status, ObservedGeneration: bound.ObservedGeneration}}
		}
	}
	return object, nil // else a tombstone
}
