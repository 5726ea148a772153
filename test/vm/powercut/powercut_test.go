// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/program"
	"kubediag.org/kubediag/test/vm"
)

// node is a machine whose power is cut again and again.
type node struct {
	*vm.Machine
	t                     *testing.T
	kernel, program, disk string
}

func newNode(t *testing.T, kernel string) *node {
	t.Helper()
	n := &node{
		t: t, kernel: kernel, disk: filepath.Join(t.TempDir(), "disk"),
		program: program.Build(t, "test/vm/powercut", "-trimpath", "-tags=crash"),
	}
	kerneltest.Must(n.t, errors.Join(os.WriteFile(n.disk, nil, 0o600), os.Truncate(n.disk, 128<<20)))
	if out, err := exec.Command("mkfs.ext4", "-q", n.disk).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return n
}

// boot starts the machine with its disk, of which nothing but what is synced outlives a power cut.
func (n *node) boot() {
	n.t.Helper()
	begin := time.Now()
	m, err := vm.Start(n.t.Context(), vm.Options{
		Kernel: n.kernel, Disks: []string{n.disk}, Files: map[string]string{"/powercut": n.program}, Memory: 1024, Limit: 10 * time.Minute,
	})
	kerneltest.Must(n.t, err)
	n.t.Cleanup(func() { _ = m.Close() })
	n.Machine = m
	_, err = m.Run(n.t.Context(), "sh", "-c", "mkdir -p /mnt && mount -o commit=3000 /dev/vdd /mnt")
	kerneltest.Must(n.t, err)
	n.t.Logf("booted in %s", time.Since(begin).Round(time.Second))
}

// play has the program do what a verb says, and kill itself at a boundary of its journal. killed is whether it came that far.
func (n *node) play(verb, dir string, boundary int) (ended Ended, killed bool) {
	n.t.Helper()
	out, err := n.Run(n.t.Context(), "env", fmt.Sprint("KUBEDIAG_CRASH_AT=", boundary), "/powercut", verb, filepath.Join("/mnt", dir))
	var exit *vm.ExitError
	if boundary > 0 && errors.As(err, &exit) && exit.Status == -1 {
		return ended, true
	}
	if err != nil {
		n.t.Fatalf("%s %s: %v", verb, dir, err)
	}
	kerneltest.Must(n.t, json.Unmarshal([]byte(out), &ended))
	return ended, false
}

// end goes on after the boot, and checks what comes of it. If rebound is set, the kubelet has bound the subPath again
// before.
func (n *node) end(dir string, rebound bool) v1.DiagnosisStatus {
	n.t.Helper()
	verb := "resume"
	if rebound {
		verb = "rebind"
	}
	ended, _ := n.play(verb, dir, 0)
	// A bind that the boot has taken away need not be healed: either the repair was under way, or there is nothing to
	// do.
	if (ended.Status.Phase == v1.DiagnosisSucceeded) != (ended.Status.Outcome == v1.OutcomeHealed) || rank[ended.Status.Outcome] == 0 {
		n.t.Errorf("%s: the Diagnosis ended with %s, %s", dir, ended.Status.Phase, ended.Status.Outcome)
	}
	if ended.Before != ended.After || rebound != (ended.After != "") || rebound && ended.Names == 0 {
		n.t.Errorf("%s: the mount at the place was %q and is %q, with %d names; want it untouched", dir, ended.Before, ended.After, ended.Names)
	}
	again, _ := n.play("resume", dir, 0)
	if again.Status.Phase != ended.Status.Phase || again.Status.Outcome != ended.Status.Outcome {
		n.t.Errorf("%s: run again, it ended with %s, and before with %s", dir, again.Status.Outcome, ended.Status.Outcome)
	}
	return ended.Status
}

// rank orders the outcomes by how far the repair got before the cut. The boot has taken the fault away: a Diagnosis that had not
// begun its repair finds none, and one that had begun finds that nothing is left to do.
var rank = map[v1.Outcome]int{v1.OutcomeNoFault: 1, v1.OutcomeHealed: 2}

// maxBoundaries is more than the repair has.
const maxBoundaries = 60

// TestPowerCutAtEveryRecord cuts the power when as many repairs have got as far as the moment before, and the one after, each of
// their records. The boot has taken the mounts away, and the kubelet has bound every second subPath again.
func TestPowerCutAtEveryRecord(t *testing.T) {
	for _, kernel := range vm.Kernels {
		t.Run("Linux "+kernel, func(t *testing.T) { newNode(t, kernel).endAtEveryRecord(func(n *node) { n.Kill() }) })
	}
}

// TestRebootAtEveryRecord reboots the machine instead, so that all that was written is on the disk.
func TestRebootAtEveryRecord(t *testing.T) {
	for _, kernel := range vm.Kernels {
		t.Run("Linux "+kernel, func(t *testing.T) { newNode(t, kernel).endAtEveryRecord((*node).reboot) })
	}
}

// rebootLimit is how long a machine may take to write what it has and to end.
const rebootLimit = 2 * time.Minute

// reboot has the guest reboot. For qemu that is its end.
func (n *node) reboot() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), rebootLimit)
	defer cancel()
	if _, err := n.Run(ctx, "sh", "-c", "sync; echo b >/proc/sysrq-trigger; sleep 1000"); !errors.Is(err, vm.ErrGone) {
		n.t.Fatalf("the guest reboots: %v, want ErrGone", err)
	}
	kerneltest.Must(n.t, n.Wait(ctx))
}

// endAtEveryRecord has a repair killed at each of its records, then the machine end, and at the next boot all go on.
func (n *node) endAtEveryRecord(end func(*node)) {
	t := n.t
	n.boot()
	last := 1
	for ; ; last++ {
		if ended, killed := n.play("break", fmt.Sprint(last), last); !killed {
			if ended.Status.Outcome != v1.OutcomeHealed || ended.Before == "" || ended.After == ended.Before || ended.After != "" && ended.Names == 0 {
				t.Fatalf("undisturbed, it ended with %s: %q, %q, %d names", ended.Status.Outcome, ended.Before, ended.After, ended.Names)
			}
			break
		}
		if last == maxBoundaries {
			t.Fatalf("there are more than %d boundaries", maxBoundaries)
		}
	}
	if last < 12 {
		t.Errorf("only %d boundaries were found", last-1)
	}
	end(n)
	n.boot()
	outcomes, before := map[v1.Outcome]int{}, v1.OutcomeNoFault
	for i := 1; i < last; i++ {
		now := n.end(fmt.Sprint(i), i%2 == 0).Outcome
		if rank[now] < rank[before] {
			t.Errorf("ended at boundary %d the Diagnosis came to %s, and one boundary before to %s", i, now, before)
		}
		outcomes[now]++
		before = now
	}
	if len(outcomes) != len(rank) {
		t.Errorf("outcomes %v, want each of %v", outcomes, rank)
	}
	t.Logf("the machine ended at %d boundaries: %v", last-1, outcomes)
}

// cuts is how often the power is cut at any instant, on each kernel.
const cuts = 3

// TestPowerCutAtAnyInstant cuts the power somewhere within the time that the repair takes.
func TestPowerCutAtAnyInstant(t *testing.T) {
	for _, kernel := range vm.Kernels {
		t.Run("Linux "+kernel, func(t *testing.T) { newNode(t, kernel).cutAtAnyInstant() })
	}
}

func (n *node) cutAtAnyInstant() {
	t := n.t
	n.boot()
	begin := time.Now()
	n.play("break", "whole", 0)
	takes := time.Since(begin)
	for i := range cuts {
		dir := fmt.Sprint("any-", i)
		after := rand.N(takes)
		time.AfterFunc(after, n.Kill)
		_, err := n.Run(context.WithoutCancel(t.Context()), "/powercut", "break", filepath.Join("/mnt", dir))
		if err != nil && !errors.Is(err, vm.ErrGone) {
			t.Fatal(err)
		}
		n.Kill()
		n.boot()
		if _, err := n.Run(t.Context(), "test", "-f", filepath.Join("/mnt", dir, "diagnosis.json")); err != nil {
			t.Logf("after %s the Diagnosis had not begun", after)
			continue
		}
		t.Logf("after %s: %s", after, n.end(dir, i%2 == 0).Outcome)
	}
}
