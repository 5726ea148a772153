// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// idleScene is krbd devices that are mapped and not mounted, and all that a recoverer needs.
type idleScene struct {
	*devicetest.KRBD
	*devicetest.Scene
	healer  *IdleRecoverer
	request processor.Request
	clock   time.Duration
}

func newIdleScene(t *testing.T, devices int) *idleScene {
	t.Helper()
	var scenes []*devicetest.Scene
	for range devices {
		s := devicetest.New(t, "")
		s.UnmountOnHost()
		scenes = append(scenes, s)
	}
	w := &idleScene{Scene: scenes[0], clock: time.Hour, request: processor.Request{Values: map[string]string{}}}
	w.KRBD = devicetest.MapKRBD(t, scenes...)
	w.healer = w.newRecoverer()
	return w
}

// newRecoverer is a recoverer that has seen nothing yet, as after a start of the agent.
func (w *idleScene) newRecoverer() *IdleRecoverer {
	return &IdleRecoverer{Inspector: w.Inspector, Now: func() time.Duration { return w.clock }}
}

func (w *idleScene) planUnmap(t *testing.T) repair.Part {
	t.Helper()
	return planWithoutOthers(t, w.healer, w.request)
}

// letTimePass has the devices be seen, and time go by.
func (w *idleScene) letTimePass(t *testing.T, lasts time.Duration) {
	t.Helper()
	if p := w.planUnmap(t); len(p.Actions) != 0 || !strings.Contains(p.NotApplicable, "seen idle for 0 seconds only") {
		t.Fatalf("plan = %+v, want nothing for devices that are seen for the first time", p)
	}
	w.clock += lasts
}

// describe names a device as a plan does.
func (w *idleScene) describe(t *testing.T, name string) string {
	t.Helper()
	d, err := w.Inspector.Finder.Sys.Resolve(name)
	must(t, err)
	return device.DescribeTarget(d)
}

func TestUnmapsWhatIsIdle(t *testing.T) {
	w := newIdleScene(t, 2)
	rbd0, rbd1 := w.describe(t, "rbd0"), w.describe(t, "rbd1")
	w.letTimePass(t, 20*time.Minute)
	plan := w.planUnmap(t)
	if diff := cmp.Diff([]string{"Detach " + rbd0}, processortest.Targets(plan)); diff != "" || len(w.Unmapped) != 0 {
		t.Fatalf("plan (-want +got), one by default:\n%s", diff)
	}
	if plan.Actions[0].Loss == "" || !strings.Contains(plan.Actions[0].Safety, "1200 seconds") {
		t.Errorf("action = %+v", plan.Actions[0])
	}
	gone := fault.AlreadySo("was gone already")
	for _, want := range []fault.Applied{{Message: "unmapped"}, gone} {
		done, err := w.healer.Apply(t.Context(), w.request, plan.Actions[0])
		if err != nil || done != want {
			t.Errorf("%+v, error %v, want %+v", done, err, want)
		}
	}
	result, err := w.healer.Verify(t.Context(), w.request, plan)
	if err != nil || result.Values[keyIdleResult] != "unmapped idle device "+rbd0 {
		t.Errorf("results %v, %v", result.Values, err)
	}
	plan.Applied = []fault.Applied{gone}
	result, err = w.healer.Verify(t.Context(), w.request, plan)
	if err != nil || result.Values[keyIdleResult] != "did not unmap idle device "+rbd0+": was gone already" {
		t.Errorf("results of what others did %v, %v", result.Values, err)
	}
	if diff := cmp.Diff([]string{"0"}, w.Unmapped); diff != "" {
		t.Errorf("unmapped (-want +got):\n%s", diff)
	}
	w.request.Values[paramLimit] = "5"
	if diff := cmp.Diff([]string{"Detach " + rbd1}, processortest.Targets(w.planUnmap(t))); diff != "" {
		t.Errorf("the next plan (-want +got):\n%s", diff)
	}
}

// TestIdleKilledHalfWay has a new agent, which has seen nothing yet, go on with the plan of the old one.
func TestIdleKilledHalfWay(t *testing.T) {
	w := newIdleScene(t, 2)
	w.request.Values[paramLimit] = "2"
	w.letTimePass(t, 20*time.Minute)
	plan := w.planUnmap(t)
	for n := range len(plan.Actions) + 1 {
		w.healer = w.newRecoverer()
		for _, a := range plan.Actions[:n] {
			if _, err := w.healer.Apply(t.Context(), w.request, a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.healer.Verify(t.Context(), w.request, plan); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"0", "1"}, w.Unmapped); diff != "" {
		t.Errorf("unmapped (-want +got):\n%s", diff)
	}
}

// TestIdleOverARestart has a new agent count on from where the old one has ended, unless the file is of another boot,
// or of a later time, or is broken.
func TestIdleOverARestart(t *testing.T) {
	w := newIdleScene(t, 1)
	rbd0, file := w.describe(t, "rbd0"), filepath.Join(t.TempDir(), "idle-devices.json")
	again := func() {
		w.healer = w.newRecoverer()
		w.healer.File = file
	}
	again()
	w.planUnmap(t)
	content, err := os.ReadFile(file)
	must(t, err)
	w.clock += 20 * time.Minute
	again()
	if diff := cmp.Diff([]string{"Detach " + rbd0}, processortest.Targets(w.planUnmap(t))); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	boot, err := sys.BootID()
	must(t, err)
	for name, text := range map[string]string{
		"of another boot": strings.ReplaceAll(string(content), boot, "another"),
		"of a later time": strings.ReplaceAll(string(content), fmt.Sprintf(`"since":%d`, time.Hour), fmt.Sprintf(`"since":%d`, w.clock+1)),
		"broken":          string(content[:len(content)-1]),
		"used since":      strings.ReplaceAll(string(content), `"Reads":`, `"Reads":1`),
	} {
		if text == string(content) {
			t.Errorf("%s: it is the same file: %s", name, content)
		}
		must(t, os.WriteFile(file, []byte(text), 0o600))
		again()
		if p := w.planUnmap(t); len(p.Actions) != 0 || !strings.Contains(p.NotApplicable, "seen idle for 0 seconds only") {
			t.Errorf("a file %s: plan %+v", name, p)
		}
	}
	must(t, os.Remove(file))
	must(t, os.Mkdir(file, 0o700))
	again()
	if _, err := w.healer.Plan(t.Context(), w.request); err == nil || !strings.Contains(err.Error(), "what was seen of devices") {
		t.Errorf("a directory instead of the file: %v", err)
	}
}

func TestLeavesUsedDevicesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		set func(t *testing.T, w *idleScene)
		why string
	}{
		"mounted on the host":  {func(_ *testing.T, w *idleScene) { w.MountOnHost() }, "in normal use"},
		"mounted elsewhere":    {func(_ *testing.T, w *idleScene) { w.Container("own", w.Device.Node()) }, "is held by mount"},
		"open":                 {func(t *testing.T, w *idleScene) { openCandidate(t, w.Device.Node()) }, "raw open"},
		"read from meanwhile":  {func(_ *testing.T, w *idleScene) { w.Count(0, 101) }, "seen idle for 0 seconds only"},
		"too short":            {func(_ *testing.T, w *idleScene) { w.clock -= 15 * time.Minute }, "seen idle for 300 seconds only"},
		"another image by now": {func(_ *testing.T, w *idleScene) { w.Replace(0) }, "seen idle for 0 seconds only"},
		"no agent's memory":    {func(_ *testing.T, w *idleScene) { w.healer = w.newRecoverer() }, "seen idle for 0 seconds only"},
		"not mapped any more":  {func(_ *testing.T, w *idleScene) { must(t, os.RemoveAll(w.KRBD.Root+"/sys/bus/rbd/devices/0")) }, "no krbd device"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newIdleScene(t, 1)
			w.letTimePass(t, 20*time.Minute)
			c.set(t, w)
			p := w.planUnmap(t)
			if len(p.Actions) != 0 || !strings.Contains(p.NotApplicable, c.why) || len(w.Unmapped) != 0 {
				t.Errorf("plan %q, reason %q, unmapped %q, want nothing: %s", processortest.Targets(p), p.NotApplicable, w.Unmapped, c.why)
			}
		})
	}
}

// TestIdleRefusesWhatHasChanged changes something between plan and act.
func TestIdleRefusesWhatHasChanged(t *testing.T) {
	for name, c := range map[string]struct {
		set     func(t *testing.T, w *idleScene)
		why     string
		message string // of a success without an act
	}{
		"mounted":   {func(_ *testing.T, w *idleScene) { w.MountOnHost() }, "in normal use", ""},
		"open":      {func(t *testing.T, w *idleScene) { openCandidate(t, w.Device.Node()) }, "raw open", ""},
		"read from": {func(_ *testing.T, w *idleScene) { w.Count(0, 101) }, "was used since", ""},
		"kernel says no": {func(_ *testing.T, w *idleScene) {
			w.Refuse = &os.PathError{Op: "write", Path: "remove", Err: sys.EBUSY}
		}, "device is busy", ""},
		"another image": {func(_ *testing.T, w *idleScene) { w.Replace(0) }, "", "was gone already"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newIdleScene(t, 1)
			w.letTimePass(t, 20*time.Minute)
			p := w.planUnmap(t)
			c.set(t, w)
			done, err := w.healer.Apply(t.Context(), w.request, p.Actions[0])
			if done.Message != c.message || c.why != "" && (!processor.IsStalled(err) || !strings.Contains(err.Error(), c.why)) || len(w.Unmapped) != 0 {
				t.Errorf("%+v, error %v, unmapped %q, want a stalled error with %q", done, err, w.Unmapped, c.why)
			}
		})
	}
}

func TestIdleRefusesForgedActions(t *testing.T) {
	w := newIdleScene(t, 1)
	other := devicetest.New(t, "") // no krbd device
	own, another := device.Reference(w.Device), device.Reference(other.Device)
	for name, action := range map[string]fault.Action{
		"another kind":     {Kind: fault.Unmount, Device: &fault.Device{Name: "rbd0", Sequence: 5}},
		"no number":        {Kind: fault.Detach, Device: &fault.Device{Name: "rbd0"}},
		"a path":           {Kind: fault.Detach, Device: &fault.Device{Name: "../sys", Sequence: 5}},
		"nothing":          {Kind: fault.Detach, Target: "/dev/rbd0 (diskseq 5)"},
		"no device of his": {Kind: fault.Detach, Device: &another},
	} {
		done, err := w.healer.Apply(t.Context(), w.request, action)
		if !done.Already && !processor.IsStalled(err) || len(w.Unmapped) != 0 {
			t.Errorf("%s: %+v, error %v, unmapped %q, want a stalled error", name, done, err, w.Unmapped)
		}
	}
	w.Inspector.Finder.Sys = other.Inspector.Finder.Sys
	if _, err := w.healer.Apply(t.Context(), w.request, fault.Action{Kind: fault.Detach, Device: &own}); !processor.IsStalled(err) || !strings.Contains(err.Error(), "no krbd device") {
		t.Errorf("a loop device: %v, want that it is none of krbd's", err)
	}
}

func TestVerifySeesWhatWasNotDone(t *testing.T) {
	w := newIdleScene(t, 1)
	w.letTimePass(t, time.Hour)
	if _, err := w.healer.Verify(t.Context(), w.request, w.planUnmap(t)); !processor.IsStalled(err) || !strings.Contains(err.Error(), "still there") {
		t.Errorf("error %v, want that the device is still there", err)
	}
	if _, err := w.healer.Verify(t.Context(), w.request, repair.Part{}); !processor.IsStalled(err) {
		t.Errorf("an empty plan: %v, want a stalled error", err)
	}
}

func openCandidate(t *testing.T, node string) {
	t.Helper()
	f, err := os.Open(node)
	must(t, err)
	t.Cleanup(func() { f.Close() })
}

// TestIdleInOtherWords: no sentence of a plan or of an action decides anything.
func TestIdleInOtherWords(t *testing.T) {
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		w := newIdleScene(t, 1)
		w.letTimePass(t, 20*time.Minute)
		return w.healer, w.request
	})
}
