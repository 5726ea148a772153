// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

const goneUID, otherUID = orphantest.Gone, orphantest.Other

func TestMain(m *testing.M) { kerneltest.Main(m, orphantest.Roles) }

func newRecoverer(s *orphantest.Scene) *Recoverer {
	return &Recoverer{Inspector: s.Inspector, Patience: time.Millisecond} // there is no kubelet
}

func planScene(t *testing.T, s *orphantest.Scene, values map[string]string) repair.Part {
	t.Helper()
	p, err := newRecoverer(s).Plan(t.Context(), processor.Request{Values: values})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// applyActions does the actions, each by a recoverer that has seen nothing yet.
func applyActions(t *testing.T, s *orphantest.Scene, actions []fault.Action) (all []fault.Applied) {
	t.Helper()
	for _, a := range actions {
		done, err := newRecoverer(s).Apply(t.Context(), processor.Request{}, a)
		if err != nil {
			t.Fatalf("apply %s: %v", a.Target, err)
		}
		all = append(all, done)
	}
	return all
}

func TestHeals(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	s.Leave(otherUID)
	s.File(otherUID, "volumes/kubernetes.io~empty-dir/cache/data", "x")
	before := s.Tree(otherUID)
	p := planScene(t, s, nil)
	if len(p.Actions) != 8 || len(p.Findings) != 1 || p.Findings[0].Pod.UID != goneUID {
		t.Fatalf("plan = %+v", p)
	}
	for _, a := range p.Actions {
		if a.Key().Code != fault.OrphanedPodVolumes || a.Safety == "" || !a.Lossless {
			t.Errorf("action = %+v", a)
		}
	}
	applyActions(t, s, p.Actions)
	result, err := processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p)
	if err != nil {
		t.Fatal(err)
	}
	want := `removed 6 empty directories and 2 files of the kubelet of the pod with UID "` + goneUID +
		`", which is gone; the kubelet has not removed the rest of its directory within 0 seconds`
	if diff := cmp.Diff(want, result.Values[keyRecoverResult]); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(p.Findings, result.Findings); diff != "" {
		t.Errorf("findings, of which none is healed (-want +got):\n%s", diff)
	}
	if refused := result.Values[keyRecoverRefused]; !strings.Contains(refused, otherUID) || !strings.Contains(refused, "may have data") {
		t.Errorf("refused: %s", refused)
	}
	if diff := cmp.Diff(orphantest.Remaining(), s.Tree(goneUID)); diff != "" {
		t.Errorf("what remains (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, s.Tree(otherUID)); diff != "" {
		t.Errorf("of the other (-want +got):\n%s", diff)
	}
}

// TestWaitsForTheKubelet: it is healed when the kubelet has removed the rest.
func TestWaitsForTheKubelet(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	s.Leave(otherUID)
	h := &Recoverer{Inspector: s.Inspector, Patience: time.Minute}
	p := planScene(t, s, nil)
	applyActions(t, s, p.Actions)
	s.Must(os.RemoveAll(s.Node.PodDir(otherUID)))
	kubelet := time.AfterFunc(2*pollInterval, func() { _ = os.RemoveAll(s.Node.PodDir(goneUID)) })
	defer kubelet.Stop()
	result, err := processortest.Prove(t.Context(), h, processor.Request{}, p)
	if err != nil || len(result.Findings) != 2 || !result.Findings[0].Healed || !result.Findings[1].Healed || p.Findings[0].Healed {
		t.Errorf("findings %+v, %v, want both healed", result.Findings, err)
	}
	if text := result.Values[keyRecoverResults]; strings.Count(text, "nothing is left of its directory") != 2 {
		t.Errorf("results: %s", text)
	}
	s.Dir(otherUID, "containers")
	firstHealed := func(what string, ctx context.Context) {
		t.Helper()
		result, err := processortest.Prove(ctx, h, processor.Request{}, p)
		if err != nil || !result.Findings[0].Healed || result.Findings[1].Healed {
			t.Errorf("%s: findings %+v, %v, want the first healed", what, result.Findings, err)
		}
		if text := result.Values[keyRecoverResults]; !strings.Contains(text, "within 0 seconds") {
			t.Errorf("%s: results: %s", what, text)
		}
	}
	for _, left := range []time.Duration{processor.ReserveTime + pollInterval, processor.ReserveTime / 2} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		firstHealed("an operation that has little time", ctx)
		if err := ctx.Err(); err != nil {
			t.Errorf("the time of the operation is over: %v", err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(pollInterval, cancel)
	defer stop.Stop()
	if _, err := processortest.Prove(ctx, h, processor.Request{}, p); !errors.Is(err, context.Canceled) {
		t.Errorf("when the agent ends: %v", err)
	}
	h.Patience = pollInterval
	firstHealed("a short patience", t.Context())
}

// TestKilledHalfWay kills after each action, and has a new agent begin with the first again.
func TestKilledHalfWay(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	p := planScene(t, s, nil)
	for n := range len(p.Actions) + 1 {
		for i, done := range applyActions(t, s, p.Actions[:n]) {
			if want := i < n-1; want != done.Already {
				t.Errorf("action %d of %d: %+v", i, n, done)
			}
		}
	}
	if _, err := processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(orphantest.Remaining(), s.Tree(goneUID)); diff != "" {
		t.Errorf("what remains (-want +got):\n%s", diff)
	}
	// The kubelet goes on, and the plan is run once more.
	s.Must(os.RemoveAll(s.Node.PodDir(goneUID)))
	applyActions(t, s, p.Actions)
	result, err := processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p)
	if err != nil || strings.Contains(result.Values[keyRecoverResult], "the rest") || strings.Contains(result.Values[keyRecoverResult], "already") {
		t.Errorf("result %q, %v", result.Values[keyRecoverResult], err)
	}
	for range p.Actions {
		p.Applied = append(p.Applied, fault.AlreadySo("was gone already"))
	}
	result, err = processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p)
	want := fmt.Sprintf("removed 0 empty directories, and found %d gone already, of the pod", len(p.Actions))
	if err != nil || !strings.HasPrefix(result.Values[keyRecoverResult], want) {
		t.Errorf("result of what others did %q, %v, want %q", result.Values[keyRecoverResult], err, want)
	}
}

func TestParametersNarrow(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	s.Leave(otherUID)
	for name, c := range map[string]struct {
		values map[string]string
		uids   []string
		why    string // of none
	}{
		"all":              {nil, []string{goneUID, otherUID}, ""},
		"one":              {map[string]string{ParamUID: otherUID}, []string{otherUID}, ""},
		"at most one":      {map[string]string{paramLimit: "1"}, []string{goneUID}, ""},
		"one that lives":   {map[string]string{ParamUID: orphantest.Live}, nil, "has no orphaned directory"},
		"one that is none": {map[string]string{ParamUID: "ff"}, nil, "has no orphaned directory"},
		"results of others": {map[string]string{
			"collector.kubernetes.orphaned_pods.list": `{"pods":[{"uid":"` + orphantest.Live + `","orphaned":true}]}`, ParamUID: orphantest.Live,
		}, nil, "has no orphaned directory"},
	} {
		p := planScene(t, s, c.values)
		var uids []string
		for _, f := range p.Findings {
			uids = append(uids, f.Pod.UID)
		}
		if diff := cmp.Diff(c.uids, uids); diff != "" || len(p.Actions) != 8*len(uids) {
			t.Errorf("%s: %d actions, pods (-want +got):\n%s", name, len(p.Actions), diff)
		}
		if !strings.Contains(p.NotApplicable, c.why) || (c.why == "") != (p.NotApplicable == "") {
			t.Errorf("%s: not applicable %q", name, p.NotApplicable)
		}
	}
	if _, err := newRecoverer(s).Plan(t.Context(), processor.Request{Values: map[string]string{ParamUID: "../x"}}); !processor.IsStalled(err) {
		t.Errorf("a path for a UID: %v, want a stalled error", err)
	}
}

func TestRefuses(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	p := planScene(t, s, nil)
	s.File(goneUID, "volumes/kubernetes.io~empty-dir/cache/data", "x")
	now := planScene(t, s, nil)
	if len(now.Actions) > 0 || !strings.Contains(now.NotApplicable, "left alone") || !strings.Contains(now.NotApplicable, "may have data") {
		t.Errorf("plan = %+v", now)
	}
	before := s.Tree(goneUID)
	live := s.Path(orphantest.Live, "volumes/kubernetes.io~csi/"+orphantest.Volume+"/mount")
	actions := append(p.Actions,
		fault.Action{Kind: fault.Unmount, File: p.Actions[0].File}, fault.Action{Kind: fault.RemoveDirectory, Target: live},
		fault.Action{Kind: fault.RemoveDirectory, Target: live, File: &fault.File{Path: live, Inode: 1}})
	for _, a := range actions {
		if done, err := newRecoverer(s).Apply(t.Context(), processor.Request{}, a); !processor.IsStalled(err) {
			t.Errorf("%s %s: %+v, %v, want a stalled error", a.Kind, a.Target, done, err)
		}
	}
	if diff := cmp.Diff(before, s.Tree(goneUID)); diff != "" {
		t.Errorf("something was removed:\n%s", diff)
	}
	if _, err := os.Lstat(live); err != nil {
		t.Error(err)
	}
}

func TestVerifySeesWhatWasNotDone(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	p := planScene(t, s, nil)
	_, err := processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p)
	if !processor.IsStalled(err) || !strings.Contains(err.Error(), "still there") {
		t.Errorf("nothing done: %v", err)
	}
	if _, err := processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, repair.Part{}); !processor.IsStalled(err) {
		t.Errorf("an empty plan: %v", err)
	}
	applyActions(t, s, p.Actions)
	s.Dir(goneUID, "volumes/kubernetes.io~empty-dir/another")
	_, err = processortest.Prove(t.Context(), newRecoverer(s), processor.Request{}, p)
	if !processor.IsStalled(err) || !strings.Contains(err.Error(), "kubernetes.io~empty-dir/another") {
		t.Errorf("with a new volume: %v", err)
	}
}

// TestInOtherWords: no sentence of a plan or of an action decides anything.
func TestInOtherWords(t *testing.T) {
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		s := orphantest.New(t)
		s.Leave(goneUID)
		return newRecoverer(s), processor.Request{}
	})
}
