// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// killedRelease outlives a process that is killed: the request, the plan, and how each action that was done has ended.
type killedRelease struct {
	Root    string
	Request processor.Request
	Plan    repair.Plan
	Done    map[int]fault.Applied
}

func (k *killedRelease) save(file string) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// journal is one that begins where the process before it has ended.
func (k *killedRelease) journal(ctx context.Context) (*repairtest.Journal, error) {
	j := repairtest.NewJournal(k.Plan)
	for action, applied := range k.Done {
		if err := j.Note(ctx, repair.End{Action: action, Applied: applied}); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// releaseRole releases the file system that a file describes. At the record of its journal with the given number it says so, and waits to be killed.
func releaseRole(args []string, ready func(string)) error {
	ctx := context.Background() //nolint:forbidigo // a role is no test
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var k killedRelease
	if err := json.Unmarshal(text, &k); err != nil {
		return err
	}
	last, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	node, err := kubelet.Local(k.Root)
	if err != nil {
		return err
	}
	j, err := k.journal(ctx)
	if err != nil {
		return err
	}
	records := 0
	j.Hook = func(string) {
		for i, a := range j.Progress() {
			if !a.Undone {
				k.Done[i] = a
			}
		}
		if err := k.save(args[0]); err != nil {
			panic(err)
		}
		if records++; records == last {
			ready("waits")
			kerneltest.WaitForEnd()
		}
	}
	runner := &subprocess.Runner{}
	h := &ReleaseRecoverer{Inspector: &device.Inspector{
		Kubelet: node, Finder: &devholder.Finder{Runner: runner}, Runtime: &devicetest.Runtime{Of: devicetest.Exporter()}, Runner: runner,
	}}
	if _, err := repairtest.NewEngine(h).Execute(ctx, k.Request, &k.Plan, j); err != nil {
		return err
	}
	ready(fmt.Sprintf("%d records", records))
	kerneltest.WaitForEnd()
	return nil
}

// TestReleaseKilledAtEveryRecord kills the process that releases a file system, or a device with the loop device that it is, at each record
// of its journal. Another one goes on, and the end is the same: the copies are gone, each other mount of the holder is there, and so are those
// of the host; the loop device has its file no longer.
func TestReleaseKilledAtEveryRecord(t *testing.T) {
	for name, c := range map[string]struct {
		actions int
		scene   func(t *testing.T) *heldScene
	}{
		"file system": {2, func(t *testing.T) *heldScene { return newFileSystemScene(t, "tmpfs", "exporter") }},
		"device":      {3, func(t *testing.T) *heldScene { return newReleaseScene(t, "image", "exporter") }},
	} {
		// Each action has two records, and the proof one; the process can be killed before and after each.
		records := 2 * (2*c.actions + 1)
		for last := 1; last <= records+1; last++ {
			t.Run(name+" "+strconv.Itoa(last), func(t *testing.T) { c.scene(t).killAtRecord(t, last, records) })
		}
	}
}

func (w *heldScene) killAtRecord(t *testing.T, last, records int) {
	t.Helper()
	part := w.planRelease(t)
	k := killedRelease{Root: w.Root, Request: w.request, Plan: repair.PlanOf(w.healer.Name(), part), Done: map[int]fault.Applied{}}
	file := filepath.Join(t.TempDir(), "journal")
	must(t, k.save(file))
	host, want := w.Mounts(), w.MountsOf(w.exporter.PID)
	isLoop := w.Device.Kind == blockdev.Loop
	if isLoop && !w.isAttached(t) {
		t.Fatal("the loop device has no file")
	}
	copies := map[string]bool{}
	for _, a := range part.Actions {
		if a.Mount == nil {
			continue
		}
		copies[fmt.Sprintf("%d on %d at %q", a.Mount.MountInfoID, a.Mount.ParentID, a.Mount.Point)] = true
	}
	maps.DeleteFunc(want, func(m string, _ bool) bool { return copies[m] })

	first := kerneltest.StartWith(t, nil, "release", file, strconv.Itoa(last))
	if answer := map[bool]string{true: "waits", false: fmt.Sprintf("%d records", records)}[last <= records]; first.Answer != answer {
		t.Fatalf("the process says %q, want %q", first.Answer, answer)
	}
	first.Kill()

	text, err := os.ReadFile(file)
	must(t, err)
	k = killedRelease{}
	must(t, json.Unmarshal(text, &k))
	j, err := k.journal(t.Context())
	must(t, err)
	result, err := repairtest.NewEngine(w.healer).Execute(t.Context(), k.Request, &k.Plan, j)
	must(t, err)
	if len(result.Findings) != 2 || slices.ContainsFunc(result.Findings, func(f fault.Finding) bool { return !f.Healed }) ||
		!strings.Contains(result.Values[keyReleaseResult], "every holder lives") {
		t.Errorf("result %+v", result)
	}
	if diff := cmp.Diff(want, w.MountsOf(w.exporter.PID)); diff != "" {
		t.Errorf("mounts of the holder (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(host, w.Mounts()); diff != "" {
		t.Errorf("mounts of the host (-want +got):\n%s", diff)
	}
	if isLoop && w.isAttached(t) {
		t.Error("the loop device has its file still")
	}
}
