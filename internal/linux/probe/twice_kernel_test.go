// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// TestSecondLook: a server that is stopped, and a server that has taken up the request and keeps it, are silent at the first look, and so for a while at no
// cost. They hang if they do not answer then either, and are healthy if they do.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	stuck, stopped := mountFUSE(t, "hang"), mountFUSE(t, "")
	points := []string{stuck.dirs[0], stopped.dirs[0]}
	stopped.signalServer("STOP")
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: deadline, Runner: r, Looks: probe.TwoLooks}
	ask := func(want ...probe.State) []probe.Answer {
		t.Helper()
		answers := askPoints(t, p, points...)
		if got := statesOf(answers); !slices.Equal(got, want) {
			t.Errorf("states %v, want %v: %+v", got, want, answers)
		}
		return answers
	}
	ask(probe.Silent, probe.Silent)
	began := time.Now()
	ask(probe.Silent, probe.Silent)
	if took := time.Since(began); took > deadline/4 {
		t.Errorf("took %v: a second look that follows at once waits for nothing", took)
	}
	var hung []probe.Answer
	kerneltest.Await(t, "the second look", func() bool {
		hung = askPoints(t, p, points...)
		return !slices.Contains(statesOf(hung), probe.Silent)
	})
	if got := statesOf(hung); !slices.Equal(got, []probe.State{probe.Hung, probe.Hung}) || time.Since(began) < probe.SecondLook/2 {
		t.Errorf("states %v after %v: %+v", got, time.Since(began), hung)
	}
	if !hasEvidence(hung[0], "still waits, and no other one is sent") || !hasEvidence(hung[1], "ago it did not answer, either") {
		t.Errorf("evidence %q and %q", hung[0].Evidence, hung[1].Evidence)
	}
	stopped.signalServer("CONT")
	stuck.abortConnection(t, 0)
	awaitNoProcess(t, r)
	ask(probe.Disconnected, probe.Alive)
	stopped.signalServer("STOP")
	ask(probe.Disconnected, probe.Silent)
	stopped.signalServer("CONT")
}

// TestTwice: the second look comes where one is needed. A server that answers by then is alive, and one that does not answer hangs.
func TestTwice(t *testing.T) {
	t.Parallel()
	slow, stopped, fine := mountFUSE(t, ""), mountFUSE(t, ""), mountFUSE(t, "")
	p := &probe.Prober{Deadline: deadline, Looks: probe.TwoLooks}
	slow.signalServer("STOP")
	stopped.signalServer("STOP")
	points := []string{slow.dirs[0], fine.dirs[0], stopped.dirs[0]}
	if got, want := statesOf(askPoints(t, p, points...)), []probe.State{probe.Silent, probe.Alive, probe.Silent}; !slices.Equal(got, want) {
		t.Fatalf("states %v, want %v", got, want)
	}
	slow.signalServer("CONT")
	var targets []probe.Target
	for _, point := range points {
		targets = append(targets, probe.Target{Point: point})
	}
	answers, err := probe.Twice{Prober: p}.Ask(t.Context(), targets)
	must(t, err)
	if got, want := statesOf(answers), []probe.State{probe.Alive, probe.Alive, probe.Hung}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	for i, a := range answers {
		if a.Target != i {
			t.Errorf("answer %d is of target %d", i, a.Target)
		}
	}
	slow.signalServer("STOP")
	ctx, cancel := context.WithTimeout(t.Context(), deadline+probe.SecondLook/2)
	defer cancel()
	answers, err = probe.Twice{Prober: p}.Ask(ctx, targets[:2])
	if !errors.Is(err, context.DeadlineExceeded) || len(answers) != 2 || answers[0].State != probe.Silent || answers[1].State != probe.Alive {
		t.Errorf("the caller has no time for a second look: %v, answers %+v", err, answers)
	}
	slow.signalServer("CONT")
	stopped.signalServer("CONT")
	kerneltest.Await(t, "nothing to wait", func() bool { return slow.countWaiting(t, 0)+stopped.countWaiting(t, 0) == 0 })
}
