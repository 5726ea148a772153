// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// underway are the Diagnoses that have not ended: by pod, and the one without a pod under the empty name.
type underway map[types.NamespacedName]string

func (w *Writer) underway(ctx context.Context, faults int) underway {
	if faults == 0 {
		return nil
	}
	var list v1.DiagnosisList
	if err := w.Diagnoses.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.note(ctx, fmt.Errorf("listing diagnoses: %w", err))
		return nil
	}
	found := underway{}
	for i := range list.Items {
		d := &list.Items[i]
		if d.Spec.NodeName != w.Node || d.Spec.Mode == v1.ModeRecord || d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed {
			continue
		}
		pod := types.NamespacedName{}
		if r := d.Spec.PodReference; r != nil {
			pod = types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		}
		if name := d.Namespace + "/" + d.Name; found[pod] == "" || name < found[pod] {
			found[pod] = name
		}
	}
	return found
}

// of is the Diagnosis that concerns a pod, or the node if pod is nil.
func (u underway) of(pod *corev1.Pod) string {
	if pod == nil {
		return u[types.NamespacedName{}]
	}
	return cmp.Or(u[client.ObjectKeyFromObject(pod)], u[types.NamespacedName{}])
}
