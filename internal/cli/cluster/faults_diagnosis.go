// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"strings"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// maxDiagnoses is how many Diagnoses faults reads. No more of them are active in practice.
const maxDiagnoses = 50

// diagnosisState is the state of the Diagnosis that a MountFault names.
type diagnosisState int

// States of a Diagnosis.
const (
	diagnosisUnread diagnosisState = iota // the user may not read it, or it was not asked for
	diagnosisGone                         // deleted, or ended
	diagnosisPending
	diagnosisRuns
	diagnosisWaits // for the approval of its plan
	diagnosisLost  // its agent does not answer
)

// text is the end of a sentence about the Diagnosis.
func (s diagnosisState) text() string {
	switch s {
	case diagnosisPending:
		return "has not begun"
	case diagnosisRuns:
		return "works on it"
	case diagnosisWaits:
		return "waits for approval of its plan"
	case diagnosisLost:
		return "waits for its agent, which does not answer"
	case diagnosisGone:
		return "has ended"
	case diagnosisUnread:
	}
	return "is about it"
}

// withDiagnoses returns the faults and the states of the Diagnoses that they name. A MountFault is written some seconds after its
// Diagnosis has ended or was deleted: in the list, it names none.
func (c *client) withDiagnoses(ctx context.Context, list []*v1.MountFault) ([]*v1.MountFault, map[string]diagnosisState) {
	states, current := map[string]diagnosisState{}, make([]*v1.MountFault, len(list))
	for i, f := range list {
		current[i] = f
		name := f.Status.Diagnosis
		if name == "" {
			continue
		}
		if _, known := states[name]; !known && len(states) < maxDiagnoses {
			namespace, short, _ := strings.Cut(name, "/")
			d := &v1.Diagnosis{}
			switch err := c.server.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: short}, d); {
			case err == nil:
				states[name] = stateOf(d)
			case errors.Is(err, errMissing):
				states[name] = diagnosisGone
			default:
				states[name] = diagnosisUnread
			}
		}
		if states[name] == diagnosisGone {
			current[i] = f.DeepCopy()
			current[i].Status.Diagnosis = ""
		}
	}
	return current, states
}

// stateOf is the state of a Diagnosis that was read.
func stateOf(d *v1.Diagnosis) diagnosisState {
	switch {
	case d.Ended() || d.DeletionTimestamp != nil:
		return diagnosisGone
	case d.Status.Outcome == v1.OutcomeAwaitingApproval:
		return diagnosisWaits
	case d.Status.Phase == v1.DiagnosisUnknown:
		return diagnosisLost
	case d.Status.Phase == v1.DiagnosisRunning:
		return diagnosisRuns
	}
	return diagnosisPending
}
