// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// MaxOwners bounds the owners that a cache keeps of an object.
const MaxOwners = 16

// Labels and annotations that a cache keeps of the kinds that tenants and agents create: those that are read.
var (
	keptLabels      = []string{v1.LabelNode, v1.LabelOrigin, v1.LabelPlan, v1.LabelTrigger}
	keptAnnotations = []string{v1.AnnotationApproval}
)

// maxNameBytes bounds the value of an annotation: the name of an object.
const maxNameBytes = 253

// ReduceMetadata removes the metadata that a cache does not keep of objects of tenants or agents: they may put a megabyte of labels,
// annotations, owners and finalizers on them. A patch of such an object must not write these lists back.
func ReduceMetadata(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Finalizers = nil, nil
	m.Labels, m.Annotations = choose(m.Labels, keptLabels), choose(m.Annotations, keptAnnotations)
	if len(m.OwnerReferences) > MaxOwners {
		m.OwnerReferences = slices.Clone(m.OwnerReferences[:MaxOwners])
	}
}

func choose(from map[string]string, keys []string) (kept map[string]string) {
	for _, key := range keys {
		if value, ok := from[key]; ok && len(value) <= maxNameBytes {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}
