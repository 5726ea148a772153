// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"time"
)

// Set is the name of the OperationSet to run.
func (s *DiagnosisSpec) Set() string { return cmp.Or(s.OperationSet, DefaultOperationSet) }

// Target is the pod, the device or the node that the Diagnosis is about, for people.
func (s *DiagnosisSpec) Target() string {
	switch device := s.Parameters[ParamDevice]; {
	case s.PodReference != nil:
		return "pod " + s.PodReference.Namespace + "/" + s.PodReference.Name
	case device != "":
		return "device " + device + " of " + s.NodeName
	}
	return "node " + s.NodeName
}

// ApprovalTimeout is how long a plan waits for its approval.
func (s *DiagnosisSpec) ApprovalTimeout() time.Duration {
	seconds := DefaultApprovalTimeoutSeconds
	if s.ApprovalTimeoutSeconds != nil {
		seconds = *s.ApprovalTimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}
