// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
)

// death is what a killed process throws.
type death struct{}

// crashScene is a pipeline with everything in it that a crash could upset: a path that fails, a result in a file, a failed
// attempt, two mounts to repair, one of which needs two tries.
type crashScene struct {
	kernel *kernel
	dir    string
	// agreed is how often BeforeRepair was asked, looks how often the flaky operation ran, applies how often an action was.
	agreed, looks, applies int
}

func newCrashScene(t *testing.T) *crashScene {
	return &crashScene{kernel: newKernel(7, 8), dir: t.TempDir()}
}

// job is made for every life of the process.
func (s *crashScene) job(t *testing.T) job {
	long := strings.Repeat("line of a long result\n", 12000)
	last := &unmounter{kernel: s.kernel, failApply: func(int) error {
		if s.applies++; s.applies == 2 {
			return errBroken
		}
		return nil
	}}
	check := &fakeProcessor{run: func(_ context.Context, r processor.Request) (processor.Result, error) {
		if r.Values["long"] != long || r.Values["short"] != "1" {
			return processor.Result{}, processor.Stalled(errors.New("earlier results are not whole"))
		}
		return processor.Result{Values: map[string]string{"checked": "yes"}}, nil
	}}
	flaky := &fakeProcessor{run: func(context.Context, processor.Request) (processor.Result, error) {
		if s.looks++; s.looks == 1 {
			return processor.Result{}, errBroken
		}
		return processor.Result{Values: map[string]string{"short": "1"}}, nil
	}}
	j := newJob(t, [][]int32{{1}, {2}, {3, 4}, {5}, {5}, nil}, gives("long", long), flaky, declines("another fault"), check, last)
	j.BeforeRepair = func(context.Context, report, replan) error {
		s.agreed++
		return nil
	}
	return j
}

// live runs the job in a process that dies at the n-th record, before or after it is written. A torn record is one of
// which half was written. It reports whether the process died.
func (s *crashScene) live(t *testing.T, n int, how string) (report report, died bool) {
	t.Helper()
	r, err := New(Options{DataRoot: s.dir})
	must(t, err)
	defer r.Close()
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(death); !ok {
				panic(p)
			}
			died = true
			s.damage(t, how)
		}
	}()
	count := 0
	r.hook = func(before bool, _ record) {
		if before {
			count++
		}
		if count == n && before == (how != "after" && how != "power") {
			panic(death{})
		}
	}
	return mustRun(t, r, s.job(t)), false
}

// damage does to the journal what the way of dying does.
func (s *crashScene) damage(t *testing.T, how string) {
	t.Helper()
	if _, err := os.Stat(journalPath(s.dir)); err != nil {
		// Killed before the first record: at most a part of it is there, under another name.
		must(t, os.WriteFile(journalPath(s.dir)+partEnd, []byte(`01234567 {"seq":1,"kind":"beg`), 0o600))
		return
	}
	text := []byte(journalText(t, s.dir))
	switch how {
	case "torn":
		text = append(text, `01234567 {"seq":99,"kind":"atte`...)
	case "power":
		text = synced(t, text)
	}
	must(t, os.WriteFile(journalPath(s.dir), text, 0o600))
}

// synced is what of a journal is on the disk for certain: all up to the last record that was announced.
func synced(t *testing.T, text []byte) []byte {
	t.Helper()
	var kept, unsure []byte
	for i, line := range bytes.SplitAfter(text, []byte("\n")) {
		if len(line) == 0 {
			break
		}
		r, err := decode(line, i+1)
		must(t, err)
		unsure = append(unsure, line...)
		switch r.Kind {
		case kindBegin, kindPlan, kindApply, kindEnd:
			kept, unsure = append(kept, unsure...), nil
		}
	}
	return kept
}

// end compares a report with that of a run that nothing disturbed. How often and when things ran may differ.
func sameEnd(want, got report) string {
	return cmp.Diff(want, got,
		cmpopts.IgnoreFields(v1.OperationRun{}, "Attempts", "StartTime", "CompletionTime"),
		// Every run has its own directory.
		cmpopts.IgnoreFields(v1.Artifact{}, "Path"),
		cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Results" }, cmp.Comparer(func(a, b map[string]string) bool {
			return cmp.Equal(firstLines(a), firstLines(b))
		})))
}

func firstLines(values map[string]string) map[string]string {
	first := map[string]string{}
	for key, value := range values {
		first[key], _, _ = strings.Cut(value, "\n[cut:")
	}
	return first
}

func TestKilledAtEveryRecordAndRunAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"before", "torn", "after", "power"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				undisturbed := newCrashScene(t)
				want, _ := undisturbed.live(t, 0, how)
				if !want.Succeeded || len(want.Operations) != 5 || undisturbed.agreed != 1 {
					t.Fatalf("undisturbed run: %+v", want)
				}
				for n := 1; ; n++ {
					s := newCrashScene(t)
					_, died := s.live(t, n, how)
					if !died {
						if n < 15 {
							t.Errorf("only %d records", n-1)
						}
						return
					}
					got, _ := s.live(t, 0, how)
					if diff := sameEnd(want, got); diff != "" {
						t.Errorf("killed at record %d (-undisturbed +resumed):\n%s", n, diff)
					}
					if diff := cmp.Diff(map[uint64]int{7: 1, 8: 1}, s.kernel.effects); diff != "" {
						t.Errorf("killed at record %d: effects (-want +got):\n%s", n, diff)
					}
				}
			})
		})
	}
}

// A process that is killed once in each life, one record further each time, comes to the end all the same.
func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		undisturbed := newCrashScene(t)
		want, _ := undisturbed.live(t, 0, "")
		s := newCrashScene(t)
		for life := 1; ; life++ {
			// The third record of this life is an attempt and what follows it.
			got, died := s.live(t, 3, "after")
			if !died {
				if diff := sameEnd(want, got); diff != "" {
					t.Errorf("after %d lives (-undisturbed +resumed):\n%s", life, diff)
				}
				break
			}
			if life > 40 {
				t.Fatal("does not come to an end")
			}
		}
		if diff := cmp.Diff(map[uint64]int{7: 1, 8: 1}, s.kernel.effects); diff != "" {
			t.Errorf("effects (-want +got):\n%s", diff)
		}
	})
}

// An operation that takes the process with it every time is given up.
func TestAnOperationThatKillsTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := gives("a", "1")
	for life := range 20 {
		report, died := func() (report report, died bool) {
			r := newRunner(t, dir)
			r.hook = func(before bool, rec record) {
				if !before && rec.Kind == kindAttempt {
					panic(death{})
				}
			}
			defer func() {
				if p := recover(); p != nil {
					died = true
				}
			}()
			return mustRun(t, r, newJob(t, nil, l)), false
		}()
		if died {
			continue
		}
		if life != maxInterrupted || report.Operations[0].Reason != reasonInterrupted {
			t.Errorf("life %d: %+v", life, report)
		}
		return
	}
	t.Error("it was tried for ever")
}

// A plan that is written down is resumed, whatever a new one would be.
func TestAPlanIsNeverMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newKernel(7)
	rec := &unmounter{kernel: n}
	j := newJob(t, nil, rec)
	errLater := errors.New("the status cannot be stored")
	j.BeforeRepair = func(_ context.Context, r report, _ replan) error {
		o := r.Operations[0]
		if o.Phase != v1.OperationRunning || len(o.Actions) != 1 || o.Actions[0].Phase != v1.ActionPlanned || o.Actions[0].Target != "/m/7" {
			t.Errorf("what BeforeRepair sees: %+v", o)
		}
		return errLater
	}
	if _, err := newRunner(t, dir).run(t.Context(), j); !errors.Is(err, errLater) {
		t.Fatalf("error %v, want that of BeforeRepair", err)
	}
	if len(n.mounts) != 1 || rec.applies != 0 {
		t.Fatal("something was done that BeforeRepair refused")
	}
	n.mounts = []uint64{7, 9}
	j.BeforeRepair = nil
	report := mustRun(t, newRunner(t, dir), j)
	if !report.Succeeded || rec.plans != 1 || !cmp.Equal(n.mounts, []uint64{9}) {
		t.Errorf("%d plans, mounts %v, report %+v", rec.plans, n.mounts, report)
	}
}

func TestRepairEndings(t *testing.T) {
	t.Parallel()
	stalled := always(errBroken)
	once := atCall(1, errBroken)
	for name, test := range map[string]struct {
		mounts                 []uint64
		failApply, failVerify  func(int) error
		outcome                v1.OperationPhase
		message                string
		applies, verifications int
		phases                 []v1.ActionPhase
	}{
		"works":          {[]uint64{1, 2}, nil, nil, v1.OperationSucceeded, "", 2, 1, []v1.ActionPhase{v1.ActionDone, v1.ActionDone}},
		"nothing to do":  {nil, nil, nil, v1.OperationNotApplicable, "nothing is mounted", 0, 0, nil},
		"apply fails":    {[]uint64{1, 2}, stalled, nil, v1.OperationFailed, `Unmount of "/m/1": broken`, 1, 0, []v1.ActionPhase{v1.ActionFailed, v1.ActionPlanned}},
		"apply retried":  {[]uint64{1, 2}, once, nil, v1.OperationSucceeded, "", 3, 1, []v1.ActionPhase{v1.ActionDone, v1.ActionDone}},
		"verify fails":   {[]uint64{1}, nil, stalled, v1.OperationFailed, "verifying: broken", 1, 1, []v1.ActionPhase{v1.ActionDone}},
		"verify retried": {[]uint64{1, 2}, nil, once, v1.OperationSucceeded, "", 2, 2, []v1.ActionPhase{v1.ActionDone, v1.ActionDone}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newKernel(test.mounts...)
				rec := &unmounter{kernel: n, failApply: test.failApply, failVerify: test.failVerify}
				j := newJob(t, nil, rec)
				var heard []v1.ActionPhase
				j.ActionEnded = func(_ string, _ func() report, a ActionEnd) { heard = append(heard, a.Phase) }
				o := mustRun(t, newRunner(t, t.TempDir()), j).Operations[0]
				if o.Phase != test.outcome || o.Message != test.message || rec.applies != test.applies || rec.proofs != test.verifications {
					t.Errorf("%d applies, %d verifications, %+v", rec.applies, rec.proofs, o)
				}
				var phases []v1.ActionPhase
				for _, a := range o.Actions {
					phases = append(phases, a.Phase)
				}
				if !cmp.Equal(phases, test.phases) || len(heard) != test.applies || rec.plans != 1 {
					t.Errorf("phases %v, heard of %v, %d plans", phases, heard, rec.plans)
				}
			})
		})
	}
}

// The time limit holds for plan, actions and verification together, and not for what BeforeRepair takes.
func TestTimeLimitOfARepair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(int) error { time.Sleep(40 * time.Second); return nil }
		n := newKernel(1)
		j := newJob(t, nil, &unmounter{kernel: n, failApply: slow, failVerify: slow})
		j.BeforeRepair = func(context.Context, report, replan) error { time.Sleep(5 * time.Minute); return nil }
		report := mustRun(t, newRunner(t, t.TempDir()), j)
		// The first verification has 20 s left and is left behind; it may still be at work, so there is no second one.
		if o := report.Operations[0]; o.Reason != reasonAbandoned || o.Actions[0].Phase != v1.ActionDone {
			t.Errorf("operation %+v", o)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

func TestPlanTooLarge(t *testing.T) {
	t.Parallel()
	n := newKernel()
	for i := range 20000 {
		n.mounts = append(n.mounts, uint64(i+1))
	}
	report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, &unmounter{kernel: n}))
	o := report.Operations[0]
	if o.Phase != v1.OperationFailed || !strings.Contains(o.Message, "with 20000 actions, at most 1048576") || len(n.effects) != 0 {
		t.Errorf("operation %s %q, %d effects", o.Phase, o.Message, len(n.effects))
	}
	if len(o.Actions) != 0 {
		t.Error(fmt.Sprint(len(o.Actions), " actions are in the report"))
	}
}
