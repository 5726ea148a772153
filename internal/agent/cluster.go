// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// newManager makes the controller-runtime manager of the agent: one that sees this node's work and nothing else.
func newManager(rest *rest.Config, o options) (manager.Manager, error) {
	return kubeclient.New(rest, manager.Options{
		Cache:                  cacheOptions(o.NodeName),
		Client:                 client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&coordinationv1.Lease{}}}},
		Metrics:                server.Options{BindAddress: o.MetricsBindAddress},
		HealthProbeBindAddress: o.HealthProbeBindAddress,
	})
}

// cacheOptions restrict the cache to the Diagnoses and the Pods of one node. Operations and OperationSets are few.
func cacheOptions(node string) cache.Options {
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1.Diagnosis{}: {Label: labels.SelectorFromSet(labels.Set{v1.LabelNode: v1.NodeLabelValue(node)})},
			&corev1.Pod{}:   {Field: fields.OneTermEqualSelector("spec.nodeName", node)},
		},
	}
}
