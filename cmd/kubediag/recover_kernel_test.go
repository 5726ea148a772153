// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// brokenNode is a node with faults that can be repaired: a stale subPath, a dead volume that its driver has mounted again, and a
// device that a copy holds.
type brokenNode struct {
	*volumetest.Scene
	s        *scenery
	pods     string // file
	data     string // root of the agent's data
	subPath  string // the stale bind
	observed []int  // processes whose mounts are compared
}

func newBrokenNode(t *testing.T) *brokenNode {
	t.Helper()
	w := newNode(t, volumetest.New(t))
	w.Pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
	version := w.Update(w.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
	w.subPath = w.Scene.Scene.Point(w.Pod, "configmap", "sidecar", 0)
	w.Bind(filepath.Join(version, "key"), w.subPath)
	w.Update(w.Pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	w.Kill()
	w.Remount("new")
	w.s.loop(t)
	w.observed = append(w.observed, w.s.holder.PID)
	w.writePods(t)
	return w
}

// newNode is a node without a fault.
func newNode(t *testing.T, s *volumetest.Scene) *brokenNode {
	t.Helper()
	w := &brokenNode{
		Scene: s, s: &scenery{Scene: s.Scene, program: program(t)}, data: filepath.Join(t.TempDir(), "data"),
		pods: filepath.Join(t.TempDir(), "pods.json"), observed: []int{0},
	}
	w.writePods(t)
	return w
}

// writePods writes the file of pods.
func (w *brokenNode) writePods(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(w.Pod)
	must(t, err)
	must(t, os.WriteFile(w.pods, text, 0o600))
}

func (w *brokenNode) run(t *testing.T, verb string, args ...string) *result {
	t.Helper()
	return callers[0].run(t, w.s.program, "", append([]string{verb, "--kubelet-root=" + w.Root}, args...)...)
}

// recover runs the verb with the pods and the data root of the node.
func (w *brokenNode) recover(t *testing.T, args ...string) *result {
	t.Helper()
	return w.run(t, "recover", append([]string{"--pods=" + w.pods, "--data-root=" + w.data}, args...)...)
}

// tables are the mounts that are compared before and after.
func (w *brokenNode) tables(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pid := range w.observed {
		table, err := mountns.Table(pid)
		must(t, err)
		for _, m := range table.Mounts() {
			if strings.HasPrefix(m.Point, w.Root) {
				all = append(all, fmt.Sprintf("%d: %d on %d at %q", pid, m.ID, m.Parent, m.Point))
			}
		}
	}
	return all
}

// unchanged has a command change no mount.
func (w *brokenNode) unchanged(t *testing.T, command func() *result) *result {
	t.Helper()
	before := w.tables(t)
	r := command()
	if diff := cmp.Diff(before, w.tables(t)); diff != "" {
		t.Errorf("mounts (-before +after):\n%s%s", diff, r)
	}
	return r
}

// paste has a shell run a line as the program has printed it.
func (w *brokenNode) paste(t *testing.T, line string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", line)
	cmd.Env = append(os.Environ(), programEnv+"=1", "XDG_RUNTIME_DIR="+callers[0].runtimeDir(t, w.s.program))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// says fails the test if the program has not ended so, or has not written one of the texts.
func (r *result) says(t *testing.T, status int, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.out+r.errors, text) {
			t.Errorf("%q is not said:\n%s", text, r)
		}
	}
	if r.status != status {
		t.Errorf("want status %d, got %s", status, r)
	}
}

// clean has a scan find no fault, and the container read the current file.
func (w *brokenNode) clean(t *testing.T) {
	t.Helper()
	w.run(t, "scan", "--pods="+w.pods, "--only=StaleSubPath,DisconnectedFUSE,HeldDevice").says(t, 0, "nothing broken.")
	if text := w.ReadHost(w.Point); text != "new" {
		t.Errorf("the volume has %q", text)
	}
	if text, err := os.ReadFile(w.subPath); err != nil || string(text) != "two" {
		t.Errorf("the subPath has %q, %v", text, err)
	}
}

// TestRecover builds a fault of each family that can be repaired, and has the program find, plan, repair and prove them.
func TestRecover(t *testing.T) {
	w := newBrokenNode(t)
	w.unchanged(t, func() *result { return w.recover(t, "--dry-run") }).says(t, 1, "would replace "+w.subPath, "would replace "+w.Point,
		"would unmount "+w.s.copied, "safe: ", "lost: nothing")
	refused := w.unchanged(t, func() *result { return w.recover(t) })
	refused.says(t, 3, "kubediag: recover: refused: nothing was changed: there is no terminal to ask on. To carry out the plan, type: ")
	_, line, _ := strings.Cut(strings.TrimSpace(refused.errors), "type: ")
	out := w.paste(t, line)
	for _, code := range []fault.Code{fault.StaleSubPath, fault.DisconnectedFUSE, fault.HeldDevice} {
		if !regexp.MustCompile(`(?m)^\S+ \d\. ` + string(code) + ` .*: healed: a second scan no longer finds it`).MatchString(out) {
			t.Errorf("%s is not healed:\n%s", code, out)
		}
	}
	w.clean(t)
	w.recover(t, "--yes").says(t, 0, "nothing to repair.")
	journals, err := filepath.Glob(filepath.Join(w.data, "by-hand/journal/*.jsonl"))
	if err != nil || len(journals) != 3 {
		t.Errorf("journals %q, %v", journals, err)
	}
}

// TestRecoverOfOneRow leaves the others alone.
func TestRecoverOfOneRow(t *testing.T) {
	w := newBrokenNode(t)
	w.run(t, "scan", "--pods="+w.pods).says(t, 1)
	w.recover(t, "--yes", "StaleSubPath").says(t, 0, ": healed: ", "1 of 1 fault healed.")
	w.recover(t, "--yes", "StaleSubPath").says(t, 0, ": gone since the last scan.")
	w.recover(t, "--dry-run", "99").says(t, 2, "has no such fault")
	w.run(t, "scan", "--pods="+w.pods).says(t, 1, "DisconnectedFUSE", "HeldDevice")
}

// TestTwoRecoversRepairOnce has two programs repair the same at once.
func TestTwoRecoversRepairOnce(t *testing.T) {
	w := newBrokenNode(t)
	results := make([]*result, 2)
	var both sync.WaitGroup
	for i := range results {
		both.Go(func() {
			cmd, r := callers[0].command(t, w.s.program, "", "recover", "--yes", "--kubelet-root="+w.Root, "--pods="+w.pods, "--data-root="+w.data)
			_ = cmd.Run() // its status says more
			r.status = cmd.ProcessState.ExitCode()
			results[i] = r
		})
	}
	both.Wait()
	if repaired := strings.Count(results[0].out+results[1].out, ": healed: "); repaired < 1 || repaired > 3 {
		t.Errorf("repaired %d times, of 3 faults:\n%s\n%s", repaired, results[0], results[1])
	}
	for _, r := range results {
		if r.status != 0 {
			t.Errorf("want status 0, got %s", r)
		}
	}
	w.clean(t)
	for _, point := range []string{w.subPath, w.Point} {
		table, err := mountns.Table(0)
		must(t, err)
		if n := len(table.All(point)); n != 1 {
			t.Errorf("%d mounts at %q", n, point)
		}
	}
}

// TestRecoverRefuses: a fault stays if its repair could lose something, or if its pod is not known.
func TestRecoverRefuses(t *testing.T) {
	w := newBrokenNode(t)
	w.Stop() // the daemon of the volume that the driver has mounted again
	w.run(t, "scan", "--pods="+w.pods).says(t, 1)
	w.unchanged(t, func() *result { return w.recover(t, "--yes", "DisconnectedFUSE") }).says(t, 3, ": refused because ", "Next: ")
	w.unchanged(t, func() *result { return w.run(t, "recover", "--yes", "--data-root="+w.data, "--only=StaleSubPath") }).
		says(t, 1, ": refused because its pod is not known: neither --pods, the kubelet nor the container runtime knows it. Next: ")
	w.Pod.UID = "another"
	w.writePods(t)
	w.unchanged(t, func() *result { return w.recover(t, "--yes", "--only=StaleSubPath") }).says(t, 1, ": refused because its pod is not known")
}

// TestRecoverNeedsRights that it does not take from elsewhere.
func TestRecoverNeedsRights(t *testing.T) {
	p := program(t)
	callers[1].run(t, p, "", "diagnose").says(t, 2, "kubediag: diagnose: it has to see the mounts of all processes: run it as root")
	for _, args := range [][]string{{"recover", "--yes"}, {"release", "/dev/loop0"}, {"diagnose", "--heal"}} {
		r := callers[1].run(t, p, "", args...)
		r.says(t, 2, "kubediag: "+args[0]+": it changes mounts, and has to see all of them to prove what it did: run it as root")
	}
	callers[0].run(t, p, "", "recover", "--yes", "--dry-run").says(t, 2, "kubediag: recover: --yes: cannot be with --dry-run")
	callers[0].run(t, p, "", "diagnose", "--operation-set=x").says(t, 2, `--operation-set="x": is none of auto, `)
}

// TestRecoverAsksOnATerminal and obeys the answer.
func TestRecoverAsksOnATerminal(t *testing.T) {
	w := newBrokenNode(t)
	line := fmt.Sprintf("%s recover --kubelet-root=%s --pods=%s --data-root=%s", w.s.program, fault.Quote(w.Root), w.pods, w.data)
	ask := func(answer string) string {
		out, _ := w.s.typed(t, line, answer) // its status is that of the program
		return out
	}
	r := w.unchanged(t, func() *result { return &result{out: ask("n\n")} })
	r.says(t, 0, "Repair 3 faults as planned? [y/N] ", "refused: nothing was changed")
	r = w.unchanged(t, func() *result { // what was typed before the question is no answer to it
		out, _ := w.s.typedAfter(t, "y\ny\n", line, "n\n")
		return &result{out: out}
	})
	r.says(t, 0, "Repair 3 faults as planned? [y/N] ", "refused: nothing was changed")
	if out := ask("y\n"); !strings.Contains(out, "3 of 3 faults healed.") {
		t.Errorf("after yes:\n%s", out)
	}
	w.clean(t)
}

// TestRelease has the program release a held device, and prove that it is free.
func TestRelease(t *testing.T) {
	w := newBrokenNode(t)
	w.unchanged(t, func() *result { return w.run(t, "release", "--dry-run", w.s.device) }).says(t, 1, " is held.", "would unmount "+w.s.copied)
	refused := w.unchanged(t, func() *result { return w.run(t, "release", "--data-root="+w.data, w.s.device) })
	refused.says(t, 3, "there is no terminal to ask on")
	_, line, _ := strings.Cut(strings.TrimSpace(refused.errors), "type: ")
	if out := w.paste(t, line); !strings.Contains(out, "Released: "+w.s.device+" (") || !strings.Contains(out, ") is free: ") {
		t.Errorf("%s:\n%s", line, out)
	}
	w.run(t, "release", w.s.device).says(t, 0, " is free")
	w.run(t, "release", "/").says(t, 3, "refused: it is no leftover: a file system on it is mounted in the kubelet's own mount namespace")
}

// TestHoldersPrintsTheRelease has a person look for holders, and type the command that is printed: a device need not be named.
func TestHoldersPrintsTheRelease(t *testing.T) {
	w := newBrokenNode(t)
	printed := regexp.MustCompile(`\n  To release it:\n\n    (.* ` + filepath.Base(w.s.device) + `)\n`)
	var line string
	for _, args := range [][]string{{w.s.device}, nil} {
		r := w.unchanged(t, func() *result { return w.run(t, "holders", args...) })
		r.says(t, 1, w.s.device+" (")
		said := printed.FindStringSubmatch(r.out)
		if said == nil || line != "" && said[1] != line {
			t.Fatalf("command %q, earlier %q: %s", said, line, r)
		}
		line = said[1]
	}
	out, err := w.s.typed(t, line+" --data-root="+w.data, "y\n")
	if err != nil || !strings.Contains(out, "Released: "+w.s.device+" (") || strings.Contains(out, "To release it:") {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
	w.run(t, "holders", w.s.device).says(t, 0, " is free")
}

// TestDiagnose prints the story, changes nothing, and with --heal carries out its plan.
func TestDiagnose(t *testing.T) {
	w := newBrokenNode(t)
	pods := "--pods=" + w.pods
	planned := w.unchanged(t, func() *result { return w.run(t, "diagnose", pods, "--data-root="+w.data, "--pod=default/web") })
	planned.says(t, 1, "StaleSubPath (present)", "DisconnectedFUSE (present)", "Planned: 2 faults found", "Nothing was changed. To carry out the plan:\n  ")
	r := w.unchanged(t, func() *result { return w.run(t, "diagnose", pods, "--device="+w.s.device, "-o", "yaml") })
	r.says(t, 1, "kind: Diagnosis", "code: HeldDevice", "outcome: Planned")
	_, line, _ := strings.Cut(strings.TrimSpace(planned.out), "To carry out the plan:\n")
	if out := w.paste(t, line); !strings.Contains(out, "Healed: Repaired ") {
		t.Errorf("%s:\n%s", line, out)
	}
	w.run(t, "diagnose", pods, "--pod=default/web").says(t, 0, "NoFault: ")
	w.run(t, "diagnose", pods, "--pod=default/none").says(t, 2, "pod not found")
	w.run(t, "diagnose", pods, "--data-root="+w.data, "--heal").says(t, 0, "Healed: ")
	w.clean(t)
}

// TestDiagnoseLeavesAFaultAlone whose driver has to mount the volume again: the operation is not said to have succeeded.
func TestDiagnoseLeavesAFaultAlone(t *testing.T) {
	w := newNode(t, volumetest.New(t))
	w.Kill()
	for _, args := range [][]string{nil, {"--heal"}} {
		r := w.unchanged(t, func() *result { return w.run(t, "diagnose", append(args, "--pods="+w.pods, "--data-root="+w.data)...) })
		if r.says(t, 1, "DisconnectedFUSE (present)"); !regexp.MustCompile(`(?m)^Left alone +auto`).MatchString(r.out) {
			t.Errorf("%q: %s, want the words Left alone", args, r)
		}
	}
}

// TestAnInterruptedRecoverSaysWhatItHasFound, and changes nothing: it is interrupted while a volume does not answer.
func TestAnInterruptedRecoverSaysWhatItHasFound(t *testing.T) {
	w := newBrokenNode(t)
	w.Stop()
	r := w.unchanged(t, func() *result {
		cmd, r := callers[0].command(t, w.s.program, "", "recover", "--yes", "--kubelet-root="+w.Root, "--data-root="+w.data)
		must(t, cmd.Start())
		for deadline := time.Now().Add(time.Minute); !hasChild(cmd.Process.Pid) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		must(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait() // its status says more
		r.status = cmd.ProcessState.ExitCode()
		return r
	})
	r.says(t, 2, "StaleSubPath", "HeldDevice", "the scan was interrupted")
}
