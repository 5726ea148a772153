// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

var hungFlag = flag.Int("hung", 200, "how many file systems of one pod, and of one driver, hang")

// TestHungOnesTakeNoRoom has file systems of one pod hang, one more at every pass, and then those of a driver all at
// once.
func TestHungOnesTakeNoRoom(t *testing.T) {
	t.Parallel()
	single, many, driver := max(kerneltest.Fewer(8), 6), *hungFlag, *hungFlag
	fine := mountFUSE(t, "", "")
	stuck := mountFUSE(t, slices.Repeat([]string{"hang"}, many)...)
	lost := mountFUSE(t, make([]string, driver)...)
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: max(2*time.Second, kerneltest.Patience(time.Second)), Runner: r}
	healthy := []probe.Target{{Point: fine.dirs[0], Owner: "pod"}, {Point: fine.dirs[1], Owner: "attacker"}}
	check := func(what string, others ...probe.Target) {
		t.Helper()
		began := time.Now()
		answers, err := p.Ask(t.Context(), slices.Concat(others, healthy))
		must(t, err)
		for _, a := range answers[len(others):] {
			if a.State != probe.Alive {
				t.Fatalf("%s: %d processes linger, answer %+v", what, r.Lingering(), a)
			}
		}
		if took := time.Since(began); took > 2*p.Deadline+kerneltest.Patience(20*time.Second) {
			t.Errorf("%s: the pass took %v", what, took)
		}
	}
	check("at first")
	targets := make([]probe.Target, many)
	for i, dir := range stuck.dirs {
		targets[i] = probe.Target{Point: dir, Owner: "attacker"}
	}
	for n := range single {
		check("one after another", targets[n])
	}
	if n := r.Lingering(); n < single/2 {
		t.Fatalf("%d processes linger: the test shows nothing", n)
	}
	for range 3 {
		check("all that the pod has", targets...)
	}
	waiting := 0
	for i := range stuck.dirs {
		waiting += stuck.countWaiting(t, i)
	}
	if waiting > 100 {
		t.Errorf("%d threads wait for the file systems of one pod", waiting)
	}
	p.Deadline = deadline
	var all []probe.Target
	for i, dir := range lost.dirs {
		all = append(all, probe.Target{Point: dir, Owner: []string{"a", "b", "c", "d"}[i%4]})
	}
	check("the driver is well", all...)
	lost.signalServer("STOP")
	for range 3 {
		check("the driver is lost", all...)
	}
	lost.signalServer("CONT")
	for i := range stuck.dirs {
		stuck.abortConnection(t, i)
	}
	awaitNoProcess(t, r)
}
