// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestGuardAsksForThePolicy: where no policy asks for the rights of people, a Diagnosis of a pod in another namespace runs nothing, also if
// its author has set the label by which agents watch. One in the namespace of kubediag runs.
func TestGuardAsksForThePolicy(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	n := newTestNode(t, "spaces", env.Config)
	pod := createPod(t, env, "spaces-pod", n.name)
	server := newExternal(t, nil)
	createOperations(t, env, "spaces", server.URL+"/any")
	n.startAgent(t)
	for i, tc := range []struct {
		namespace string
		phase     v1.DiagnosisPhase
		reason    string
	}{{env.Namespace(t), v1.DiagnosisFailed, v1.ReasonPodInOtherNamespace}, {"kubediag", v1.DiagnosisSucceeded, v1.ReasonComplete}} {
		d := n.diagnosis("spaces-"+tc.namespace, "spaces")
		d.Namespace, d.Spec.PodReference = tc.namespace, &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name}
		n.bind(t, env, d)
		d = awaitPhase(t, env, d, tc.phase)
		if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c == nil || c.Reason != tc.reason || server.count() != i {
			t.Errorf("in %s: %+v, %d calls", tc.namespace, c, server.count())
		}
	}
}
