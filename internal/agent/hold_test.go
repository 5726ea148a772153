// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// onePodReader returns the same pod, and the same Diagnosis, for every name.
type onePodReader struct {
	client.Reader
	pod       corev1.Pod
	diagnosis v1.Diagnosis
}

func (o *onePodReader) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Pod:
		*into = o.pod
	case *v1.Diagnosis:
		*into = o.diagnosis
	}
	return nil
}

// fixedHold answers with the same reason, and records what it is asked.
type fixedHold struct {
	why      string
	err      error
	pod      string
	by       guard.Consent
	acquired bool
	evicts   bool
	ended    []fault.Key
}

func (h *fixedHold) Hold(_ context.Context, _ fault.Code, pod *corev1.Pod, by guard.Consent) (policy.Reason, error) {
	h.pod, h.by = "", by
	if pod != nil {
		h.pod = pod.Name
	}
	return policy.Reason{Why: h.why}, h.err
}

func (h *fixedHold) AcquireRequested(ctx context.Context, r guard.Request) (policy.Reason, error) {
	h.acquired = true
	return h.HoldRequested(ctx, r)
}

func (h *fixedHold) HoldRequested(ctx context.Context, r guard.Request) (policy.Reason, error) {
	h.evicts = r.Evicts
	by := guard.NoConsent
	if r.Approved {
		by = guard.PlanApproved
	}
	return h.Hold(ctx, r.Code, r.Pod, by)
}

func (h *fixedHold) Ended(key fault.Key, _ fault.Pod, _ error) { h.ended = append(h.ended, key) }

// countingFamily counts the actions that were done.
type countingFamily struct {
	n   int
	err error
}

func (*countingFamily) Name() string { return "counting" }

func (*countingFamily) Plan(context.Context, processor.Request) (repair.Part, error) {
	return repair.Part{}, errors.New("is not asked")
}

func (f *countingFamily) Open() repair.Apply {
	return func(context.Context, processor.Request, fault.Action) (fault.Applied, error) {
		f.n++
		return fault.Applied{}, f.err
	}
}

func (*countingFamily) Verify(context.Context, processor.Request, repair.Part) (processor.Result, error) {
	return processor.Result{}, nil
}

// execute has a plan of one action carried out behind the gate.
func execute(t *testing.T, k *repairHolder, f *countingFamily, r processor.Request, a fault.Action) error {
	t.Helper()
	plan := repair.Plan{Parts: []repair.Part{{Family: f.Name(), Actions: []fault.Action{a}}}}
	e := repairtest.NewEngine(f)
	e.Gate = k
	_, err := e.Execute(t.Context(), r, &plan, repairtest.NewJournal(plan))
	return err
}

func TestPoliciesHoldDiagnoses(t *testing.T) {
	t.Parallel()
	trigger := v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		{APIVersion: v1.GroupVersion.String(), Kind: "Trigger", Name: "t"},
	}}}
	approved := *trigger.DeepCopy()
	approved.Spec.Mode = v1.ModeApprove
	elsewhere := v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "another"}}
	byPolicy := v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelOrigin: v1.OriginPolicy}}}
	policyApproved := *byPolicy.DeepCopy()
	policyApproved.Spec.Mode = v1.ModeApprove
	byName := processor.Request{Pod: processor.Pod{Namespace: "ns", Name: "named"}}
	const person = guard.MadeByPerson
	for name, tc := range map[string]struct {
		guard     fixedHold
		diagnosis v1.Diagnosis
		request   processor.Request
		action    fault.Action
		pod       string // that the guard is asked about
		done      int
		by        guard.Consent
	}{
		"a person's":             {request: byName, pod: "named", done: 1, by: person},
		"of another namespace":   {request: byName, diagnosis: elsewhere, pod: "named", done: 1, by: guard.MadeElsewhere},
		"and of no pod":          {diagnosis: elsewhere, done: 1, by: person},
		"and of another pod":     {request: byName, diagnosis: elsewhere, action: fault.Action{Pod: &fault.Pod{UID: "u"}}, pod: "indexed", done: 1, by: guard.MadeElsewhere},
		"a Trigger's":            {request: byName, diagnosis: trigger, pod: "named", done: 1},
		"a Trigger's, approved":  {request: byName, diagnosis: approved, pod: "named", done: 1, by: guard.PlanApproved},
		"a policy's":             {request: byName, diagnosis: byPolicy, pod: "named", done: 1},
		"a policy's, approved":   {request: byName, diagnosis: policyApproved, pod: "named", done: 1, by: guard.PlanApproved},
		"a policy's eviction":    {request: byName, diagnosis: byPolicy, action: fault.Action{Kind: fault.Evict}, pod: "named", done: 1},
		"a policy's, held":       {guard: fixedHold{why: "the budget is used up"}, request: byName, diagnosis: byPolicy, pod: "named"},
		"the pod of the action":  {request: byName, action: fault.Action{Pod: &fault.Pod{UID: "u"}}, pod: "indexed", done: 1, by: person},
		"no pod":                 {done: 1, by: person},
		"held":                   {guard: fixedHold{why: "policy p is paused"}, request: byName, pod: "named", by: person},
		"not known whether held": {guard: fixedHold{err: errors.New("refused")}, request: byName, pod: "named", by: person},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := &onePodReader{pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: corev1.PodSpec{NodeName: "n"}}, diagnosis: tc.diagnosis}
			pods := &nodePods{node: "n", cache: reader, live: reader}
			pods.replacePod(nil, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "indexed", UID: "u"}})
			h := &repairHolder{guard: &tc.guard, pods: pods, diagnoses: reader}
			r := &countingFamily{}
			err := execute(t, h, r, tc.request, tc.action)
			applied := err
			if r.n != tc.done || (err == nil) != (tc.done == 1) || tc.guard.pod != tc.pod || tc.guard.by != tc.by {
				t.Errorf("done %d, error %v, asked about %q, consent %d", r.n, err, tc.guard.pod, tc.guard.by)
			}
			byPolicy := len(tc.diagnosis.Labels) > 0
			if ended := len(tc.guard.ended) == 1; tc.guard.acquired != (byPolicy && tc.done == 1) || ended != (byPolicy && tc.done == 1) {
				t.Errorf("acquired %t, ended %+v", tc.guard.acquired, tc.guard.ended)
			}
			if tc.guard.evicts != (tc.action.Kind == fault.Evict) {
				t.Errorf("an eviction: %t", tc.guard.evicts)
			}
			if held := tc.guard.why != ""; processor.IsHeld(err) != held || held && !strings.HasPrefix(err.Error(), "held by policy: ") {
				t.Errorf("error %v", err)
			}
			asked := tc.guard // by itself, the question takes nothing
			asked.acquired = false
			h.guard = &asked
			why, err := h.Check(t.Context(), tc.request, tc.action)
			if asked.acquired || why != tc.guard.why || !errors.Is(err, tc.guard.err) || r.n != tc.done {
				t.Errorf("held %q, error %v, acquired %v, done %d", why, err, asked.acquired, r.n)
			}
			if waiting := (*processor.WaitingError)(nil); errors.As(applied, &waiting) != (tc.guard.err != nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestWaitingIsNoFailure: an eviction that a PodDisruptionBudget holds is no failed repair.
func TestWaitingIsNoFailure(t *testing.T) {
	t.Parallel()
	reader := &onePodReader{diagnosis: v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelOrigin: v1.OriginPolicy}}}}
	for err, ended := range map[error]int{&processor.WaitingError{Err: errors.New("by web-pdb")}: 0, errors.New("refused"): 1} {
		by := &fixedHold{}
		h := &repairHolder{guard: by, pods: &nodePods{}, diagnoses: reader}
		got := execute(t, h, &countingFamily{err: err}, processor.Request{}, fault.Action{Kind: fault.Evict})
		if !errors.Is(got, err) || len(by.ended) != ended {
			t.Errorf("%v: error %v, ended %+v", err, got, by.ended)
		}
	}
}

// countingGuard allows every repair, and has a guard count those that end.
type countingGuard struct {
	fixedHold
	counts *guard.Guard
}

func (g *countingGuard) Ended(key fault.Key, pod fault.Pod, err error) { g.counts.Ended(key, pod, err) }

// TestFailureCountsForItsVolume: one failed repair is one for the breakers, however many volumes of the container have the fault. The
// agent holds repairs from the third one on, and the MountFaults, which the manager adds up, have as many.
func TestFailureCountsForItsVolume(t *testing.T) {
	t.Parallel()
	reader := &onePodReader{diagnosis: v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelOrigin: v1.OriginPolicy}}}}
	fresh := &guard.Freshness{}
	follower := fresh.Follow(&cache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
		return watch.NewFake(), nil
	}})
	_, err := cache.ToListerWatcherWithContext(follower).WatchWithContext(t.Context(), metav1.ListOptions{})
	if fresh.Answered(); err != nil {
		t.Fatal(err)
	}
	counts := guard.New(guard.Options{Node: "n", Otherwise: v1.RecoveryObserve, Freshness: fresh, Log: logr.Discard()})
	three := int32(3)
	counts.Set(&v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, Breaker: &v1.RecoveryBreaker{FailedRepairs: &three},
	}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}}
	pods := &nodePods{}
	pods.replacePod(nil, pod)
	h := &repairHolder{guard: &countingGuard{counts: counts}, pods: pods, diagnoses: reader}
	busy := errors.New("busy")
	served := fault.Key{Code: fault.StaleSubPath, PodUID: "u", Container: "app", Volume: "a"}
	action := fault.Action{Kind: fault.Unmount, For: []fault.Key{served}, Pod: &fault.Pod{UID: "u"}}
	for failures := int32(1); failures <= three; failures++ {
		if err := execute(t, h, &countingFamily{err: busy}, processor.Request{}, action); !errors.Is(err, busy) {
			t.Fatal(err)
		}
		total, closed := int32(0), 0
		for _, volume := range []string{"a", "b", "c"} {
			f := fault.Finding{Code: fault.StaleSubPath, Pod: fault.Pod{UID: "u"}, Container: "app", Volume: volume}
			r := counts.Recovery([]fault.Finding{f}, nil)
			if total += r.FailedRepairs; r.Mode == v1.RecoveryAutomatic {
				closed++
			}
		}
		if total != failures || closed != map[bool]int{true: 3}[failures < three] {
			t.Errorf("the MountFaults of three volumes have %d failed repairs, want %d; the breaker is closed for %d of them", total, failures, closed)
		}
	}
}
