// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// onePod gives the same pod, and the same Diagnosis, whatever it is asked for.
type onePod struct {
	client.Reader
	pod    corev1.Pod
	owners []metav1.OwnerReference
}

func (o *onePod) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Pod:
		*into = o.pod
	case *v1.Diagnosis:
		into.OwnerReferences = o.owners
	}
	return nil
}

// holdBy answers with the same reason, and records what it is asked.
type holdBy struct {
	why   string
	err   error
	pod   string
	asked bool
}

func (h *holdBy) Hold(_ context.Context, _ fault.Code, pod *corev1.Pod, asked bool) (string, error) {
	h.pod, h.asked = "", asked
	if pod != nil {
		h.pod = pod.Name
	}
	return h.why, h.err
}

// applies counts the actions that were done.
type applies struct {
	processor.Recoverer
	n int
}

func (a *applies) Apply(context.Context, processor.Request, fault.Action) (fault.Applied, error) {
	a.n++
	return fault.Applied{}, nil
}

type excerpting struct{ *applies }

func (excerpting) Excerpt(processor.Request, string, string, int) string { return "excerpt" }

func TestPoliciesHoldDiagnoses(t *testing.T) {
	t.Parallel()
	trigger := []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Trigger", Name: "t"}}
	byName := processor.Request{Pod: processor.Pod{Namespace: "ns", Name: "named"}}
	for name, tc := range map[string]struct {
		guard   holdBy
		owners  []metav1.OwnerReference
		request processor.Request
		action  fault.Action
		pod     string // that the guard is asked about
		done    int
		asked   bool
	}{
		"a person's":             {request: byName, pod: "named", done: 1, asked: true},
		"a Trigger's":            {request: byName, owners: trigger, pod: "named", done: 1},
		"the pod of the action":  {request: byName, action: fault.Action{Pod: &fault.Pod{UID: "u"}}, pod: "indexed", done: 1, asked: true},
		"no pod":                 {done: 1, asked: true},
		"held":                   {guard: holdBy{why: "policy p is paused"}, request: byName, pod: "named", asked: true},
		"not known whether held": {guard: holdBy{err: errors.New("refused")}, request: byName, pod: "named", asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := &onePod{pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: corev1.PodSpec{NodeName: "n"}}, owners: tc.owners}
			index := &podIndex{byUID: map[types.UID]*corev1.Pod{"u": {ObjectMeta: metav1.ObjectMeta{Name: "indexed"}}}}
			h := &holds{guard: &tc.guard, index: index, pods: &pods{node: "n", cache: reader, live: reader}, diagnoses: reader}
			r := &applies{}
			_, err := h.wrap(r).Apply(t.Context(), tc.request, tc.action)
			if r.n != tc.done || (err == nil) != (tc.done == 1) || tc.guard.pod != tc.pod || tc.guard.asked != tc.asked {
				t.Errorf("done %d, error %v, asked about %q, by a person %t", r.n, err, tc.guard.pod, tc.guard.asked)
			}
			if held := tc.guard.why != ""; processor.IsStalled(err) != held || errors.Is(err, errHeld) != held {
				t.Errorf("error %v", err)
			}
			if waiting := (*processor.WaitingError)(nil); errors.As(err, &waiting) != (tc.guard.err != nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestHoldKeepsExcerpts(t *testing.T) {
	t.Parallel()
	if e, ok := (&holds{}).wrap(excerpting{&applies{}}).(processor.Excerpter); !ok || e.Excerpt(processor.Request{}, "", "", 0) != "excerpt" {
		t.Error("no excerpts")
	}
	if _, ok := (&holds{}).wrap(&applies{}).(processor.Excerpter); ok {
		t.Error("an excerpt of a recoverer that has none")
	}
}
