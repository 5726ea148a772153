// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kube"
	"kubediag.org/kubediag/test/apitest"
)

// newTestWaker has the agent's rights. Looks for an answer, until it gives up, is one per millisecond.
func newTestWaker(t *testing.T, env *apitest.Env, looks int) *waker {
	t.Helper()
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(as(env.Config, account("kubediag-agent")), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &waker{client: c, live: c, backoff: wait.Backoff{Steps: looks, Duration: time.Millisecond, Factor: 1}}
}

// repairing is a Diagnosis of pod c/p that an agent has taken.
func repairing(t *testing.T, env *apitest.Env, name string) *v1.Diagnosis {
	t.Helper()
	d := (&node{name: "wake-n0"}).diagnosis(name, "set")
	d.Spec.PodReference = &v1.PodReference{Namespace: "c", Name: "p"}
	env.MustCreate(t, d)
	d.Status = v1.DiagnosisStatus{
		Phase: v1.DiagnosisRunning, OperationResults: map[string]string{"a": "b"},
		Conditions: []metav1.Condition{{
			Type: v1.ConditionAccepted, Status: "True", Reason: v1.ReasonAccepted, LastTransitionTime: metav1.Now(),
		}},
	}
	if err := env.Client.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// says answers the next request of a Diagnosis as a manager would, with that status, or removes it. It gives the Diagnosis as it
// was then; nil, where there was no request.
func says(t *testing.T, env *apitest.Env, d *v1.Diagnosis, status metav1.ConditionStatus) <-chan *v1.Diagnosis {
	t.Helper()
	asked := make(chan *v1.Diagnosis, 1)
	go func() {
		defer close(asked)
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			now := &v1.Diagnosis{}
			if err := env.Client.Get(ctx, client.ObjectKeyFromObject(d), now); err != nil {
				return false, err
			}
			if !meta.IsStatusConditionPresentAndEqual(now.Status.Conditions, v1.ConditionKubeletWoken, metav1.ConditionUnknown) {
				return false, nil
			}
			request, conditions := now.DeepCopy(), &now.Status.Conditions
			meta.RemoveStatusCondition(conditions, v1.ConditionKubeletWoken)
			if status != "" {
				meta.SetStatusCondition(conditions, metav1.Condition{
					Type: v1.ConditionKubeletWoken, Status: status, Reason: "Test", Message: "that is the answer",
				})
			}
			asked <- request
			return true, env.Client.Status().Update(ctx, now)
		})
		if err != nil {
			t.Error(err)
		}
	}()
	return asked
}

// TestManagerIsAskedToWake: with the rights of an agent, as often as there is something to ask for, each time in other words.
// Nothing else of the status is touched.
func TestManagerIsAskedToWake(t *testing.T) {
	t.Parallel()
	env := install(t)
	w := newTestWaker(t, env, 60000)
	d := repairing(t, env, "wake-asked")
	texts := map[string]bool{}
	for _, c := range []struct {
		status metav1.ConditionStatus
		want   string
	}{
		{metav1.ConditionTrue, ""},
		{metav1.ConditionFalse, "that is the answer"},
		{metav1.ConditionTrue, ""},
		{"", "removed"},
	} {
		asked := says(t, env, d, c.status)
		err := w.Wake(running(t.Context(), d), "c", "p")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q answered: %v, want %q", c.status, err, c.want)
		}
		request := <-asked
		if request == nil {
			t.Fatal("nobody was asked")
		}
		if s := request.Status; len(s.Conditions) != 2 || s.Conditions[0].Type != v1.ConditionAccepted || s.OperationResults["a"] != "b" {
			t.Errorf("the request: %+v", s)
		}
		texts[meta.FindStatusCondition(request.Status.Conditions, v1.ConditionKubeletWoken).Message] = true
	}
	if len(texts) != 4 {
		t.Errorf("four requests have the texts %v", texts)
	}
}

// TestNobodyToWake: without a manager the agent goes on soon.
func TestNobodyToWake(t *testing.T) {
	t.Parallel()
	env := install(t)
	d := repairing(t, env, "wake-unheard")
	if err := newTestWaker(t, env, 3).Wake(running(t.Context(), d), "c", "p"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithTimeout(running(t.Context(), d), 100*time.Millisecond)
	defer stop()
	if err := newTestWaker(t, env, 60000).Wake(ctx, "c", "p"); err == nil || ctx.Err() == nil {
		t.Errorf("stopped meanwhile: %v", err)
	}
}

// TestOnlyTheDiagnosisAsks for the pod that it is about: neither a caller from outside, who has none, nor for another pod,
// nor by the name of a Diagnosis that is gone.
func TestOnlyTheDiagnosisAsks(t *testing.T) {
	t.Parallel()
	env := install(t)
	w := newTestWaker(t, env, 3)
	d := repairing(t, env, "wake-other")
	replaced, bare, gone := d.DeepCopy(), d.DeepCopy(), d.DeepCopy()
	replaced.UID, bare.Spec.PodReference, gone.Name = "other", nil, "wake-gone"
	if !w.Wakes(running(t.Context(), d)) || w.Wakes(t.Context()) {
		t.Error("a run can ask, and nobody else")
	}
	for name, c := range map[string]struct {
		ctx       context.Context
		pod, want string
	}{
		"no Diagnosis":      {t.Context(), "p", "no Diagnosis"},
		"another pod":       {running(t.Context(), d), "other", "not about pod"},
		"no pod":            {running(t.Context(), bare), "p", "not about pod"},
		"another Diagnosis": {running(t.Context(), replaced), "p", "another by now"},
		"gone":              {running(t.Context(), gone), "p", "not found"},
	} {
		if err := w.Wake(c.ctx, "c", c.pod); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	now := &v1.Diagnosis{}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(d), now); err != nil || now.ResourceVersion != d.ResourceVersion {
		t.Errorf("the Diagnosis was changed: %+v, %v", now.Status, err)
	}
}
