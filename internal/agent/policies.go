// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/processor/volume"
)

// These are the rights for it. Namespaces and the node are read by name. Slots of budgets are Leases in the agent's namespace.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoverypolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces;nodes,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create,namespace=kubediag

// newGuard makes the part that obeys RecoveryPolicies. Faults that none selects have the mode of the flag.
func (a *agent) newGuard(ctx context.Context) error {
	a.guard = guard.New(guard.Options{
		Node: a.options.NodeName, Namespace: a.options.Namespace, Otherwise: v1.RecoveryMode(a.options.SentinelMode),
		Live: a.manager.GetAPIReader(), Client: a.manager.GetClient(), Freshness: a.freshness,
		EvictionRefusal: func(pod *corev1.Pod) string { return volume.EvictionRefusal(pod, a.options.AllowEviction, false) },
		Log:             a.manager.GetLogger().WithName("guard"),
	})
	return follow(ctx, a.manager.GetCache(), &v1.RecoveryPolicy{}, func(before, now *v1.RecoveryPolicy) {
		switch {
		case now != nil:
			a.guard.Set(now)
		case before != nil:
			a.guard.Delete(before.Name)
		}
	})
}
