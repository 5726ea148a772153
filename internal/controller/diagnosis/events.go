// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// reasonAgentBack is the reason of the Event that ends what v1.ReasonAgentLost has begun.
const reasonAgentBack = "AgentBack"

// reasonSucceeded is the reason of the Event about the end of a Diagnosis, as agents have it.
const reasonSucceeded = "DiagnosisSucceeded"

// note is an Event on the Diagnosis. It is sent after the status that it describes has been written.
type note struct{ kind, reason, message string }

func (v *visit) warn(reason, message string) {
	v.tell = append(v.tell, note{corev1.EventTypeWarning, reason, message})
}

func (v *visit) say(reason, message string) {
	v.tell = append(v.tell, note{corev1.EventTypeNormal, reason, message})
}

func (r *Reconciler) announce(v *visit) {
	count(v)
	for _, n := range v.tell {
		r.Events.Event(v.is, n.kind, n.reason, kubeclient.EventMessage(n.message, kubeclient.DiagnosisCommand(v.is)))
	}
}

// concernsManager lets through what may need the manager: a new Diagnosis, another phase, a changed spec or label. The
// writes of an agent that works do not concern it. Nor does a Diagnosis that has just become bound: it is looked at
// again when its agent has had the time to take it.
func concernsManager() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			d, ok := e.Object.(*v1.Diagnosis)
			return ok && !ended(d)
		},
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, ok := e.ObjectOld.(*v1.Diagnosis)
			is, ok2 := e.ObjectNew.(*v1.Diagnosis)
			if !ok || !ok2 || ended(is) || (!bound(was) && bound(is)) {
				return false
			}
			return was.Status.Phase != is.Status.Phase || was.Generation != is.Generation || bound(was) != bound(is)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}
