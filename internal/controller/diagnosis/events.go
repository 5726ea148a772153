// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "kubediag.org/kubediag/api/v1"
)

// reasonAgentBack is the reason of the Event that an agent is back, after an Event with v1.ReasonAgentLost.
const reasonAgentBack = "AgentBack"

// reasonSucceeded is the reason of the Event about the end of a Diagnosis, as agents have it.
const reasonSucceeded = "DiagnosisSucceeded"

// eventNote is an Event on the Diagnosis. It is sent after the status that it describes has been written.
type eventNote struct{ kind, reason, message string }

func (c *reconcileScope) addWarning(reason, message string) {
	c.events = append(c.events, eventNote{corev1.EventTypeWarning, reason, message})
}

func (c *reconcileScope) addNormal(reason, message string) {
	c.events = append(c.events, eventNote{corev1.EventTypeNormal, reason, message})
}

// managerPredicate lets an event through if the manager may have work: a new Diagnosis, another phase, a changed spec or label, or a wrong
// label of a Diagnosis that is over. It drops the writes of an agent that works, and a Diagnosis that has just become bound and did not wait
// for a place: that one is reconciled again when its agent has had the time to take it.
func managerPredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			d, ok := e.Object.(*v1.Diagnosis)
			if !ok {
				return false
			}
			_, wrong := wrongLabel(d)
			return wrong || !d.Ended()
		},
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, ok := e.ObjectOld.(*v1.Diagnosis)
			is, ok2 := e.ObjectNew.(*v1.Diagnosis)
			if !ok || !ok2 || (!isBound(was) && isBound(is) && !is.Ended() && !waitsForPlace(is)) {
				return false
			}
			if is.Ended() {
				_, wrong := wrongLabel(is)
				return wrong
			}
			return was.Status.Phase != is.Status.Phase || was.Generation != is.Generation || isBound(was) != isBound(is)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}
