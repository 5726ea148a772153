// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// runRelease plans for what is named, does it, and gives what is said of it at the end.
func (w *heldScene) runRelease(t *testing.T, values map[string]string, actions int) string {
	t.Helper()
	w.request.Values = values
	p := w.planRelease(t)
	if len(p.Actions) != actions {
		t.Fatalf("for %v: plan %q, reason %q, want %d actions", values, processortest.Targets(p), p.NotApplicable, actions)
	}
	w.applyPlan(t, p)
	result, err := w.healer.Verify(t.Context(), w.request, p)
	must(t, err)
	if _, err := mountns.Of(w.exporter.PID); err != nil {
		t.Errorf("the holder: %v", err)
	}
	return result.Values[keyReleaseResults]
}

func wantFree(t *testing.T, d blockdev.Device, want bool) {
	t.Helper()
	if busy, err := (blockdev.Sys{}).Busy(d); err != nil || busy == want {
		t.Errorf("%s: busy %v, %v", d.Node(), busy, err)
	}
}

// TestReleasesAMappedDevice names a linear mapping of the device mapper.
func TestReleasesAMappedDevice(t *testing.T) {
	s, below, _ := devicetest.NewMapped(t)
	w := newReleaseSceneOn(t, s, "exporter")
	c, err := w.Inspector.Inspect(t.Context(), w.Device)
	must(t, err)
	if w.Device.Kind != blockdev.DM || !c.IsHeld() || !c.Removable || len(c.Copies()) != 2 {
		t.Fatalf("device %+v, removable %v: %s", w.Device, c.Removable, c.Why)
	}
	said := w.runRelease(t, map[string]string{device.ParamDevice: w.Device.Node()}, 2)
	if !strings.Contains(said, "released device "+w.Device.Node()) || !strings.Contains(said, "free, and left to its driver") {
		t.Errorf("results %s", said)
	}
	wantFree(t, w.Device, true)
	wantFree(t, below, false) // the mapping is its driver's to remove
}

// TestReleasesWhatIsMadeOfADevice names a device that two others are made of, as a driver's message does that cannot
// detach it. A copy of the mounts of both is held; the kubelet has one of them mounted at first.
func TestReleasesWhatIsMadeOfADevice(t *testing.T) {
	const volume = "pvc-other"
	s, below, above := devicetest.NewMapped(t, volume)
	w := newReleaseSceneOn(t, s, "exporter")
	usage, err := w.Inspector.InspectWithProcesses(t.Context(), below)
	must(t, err)
	var holders []string
	for _, h := range usage.HolderInfos {
		holders = append(holders, string(h.Kind)+" "+h.Path)
		if !strings.Contains(h.Why, "kubediag holders "+h.Path) {
			t.Errorf("%s: %s", h.Path, h.Why)
		}
	}
	want := []string{"stacked device " + above[0].Node(), "stacked device " + above[1].Node()}
	if diff := cmp.Diff(want, holders); diff != "" || !usage.Busy || usage.Removable || !strings.Contains(usage.Why, "is made of it and must be removed first") {
		t.Errorf("busy %v, removable %v: %s\nholders (-want +got):\n%s", usage.Busy, usage.Removable, usage.Why, diff)
	}
	message := map[string]string{device.ParamMessage: "rbd: failed to unmap device " + below.Node() + ", error exit status 16"}
	if said := w.runRelease(t, message, 2); !strings.Contains(said, "released device "+above[0].Node()) || strings.Contains(said, above[1].Node()) {
		t.Errorf("results %s", said)
	}
	wantFree(t, above[0], true)
	wantFree(t, above[1], false)
	p := w.planRelease(t)
	for _, part := range []string{"devices made of it use it", above[1].Node() + " (" + above[1].Number.String() + ") is in normal use"} {
		if len(p.Actions) > 0 || !strings.Contains(p.NotApplicable, part) {
			t.Errorf("plan %q, reason %q, want none that says %q", processortest.Targets(p), p.NotApplicable, part)
		}
	}
	w.UnmountVolume(volume)
	if said := w.runRelease(t, map[string]string{device.ParamDevice: below.Name}, 1); !strings.Contains(said, "released device "+above[1].Node()) {
		t.Errorf("results %s", said)
	}
	wantFree(t, above[1], true)
}

// TestReleasesABtrfsOfTwoDevices names either of them, and is told of that one.
func TestReleasesABtrfsOfTwoDevices(t *testing.T) {
	for name, of := range map[string]func(first, second blockdev.Device) blockdev.Device{
		"first":  func(first, _ blockdev.Device) blockdev.Device { return first },
		"second": func(_, second blockdev.Device) blockdev.Device { return second },
	} {
		t.Run(name, func(t *testing.T) {
			s, second := devicetest.NewBtrfs(t)
			w := newReleaseSceneOn(t, s, "exporter")
			named := of(w.Device, second)
			for _, d := range []blockdev.Device{w.Device, second} {
				c, err := w.Inspector.Inspect(t.Context(), d)
				must(t, err)
				if !c.Busy || !c.Removable || len(c.Copies()) != 2 || c.Device != d {
					t.Errorf("%s: busy %v, removable %v, %d copies: %s", d.Node(), c.Busy, c.Removable, len(c.Copies()), c.Why)
				}
			}
			said := w.runRelease(t, map[string]string{device.ParamDevice: named.Node()}, 2)
			if !strings.Contains(said, "released device "+named.Node()) {
				t.Errorf("results %s do not speak of %s", said, named.Node())
			}
			wantFree(t, w.Device, true)
			wantFree(t, second, true)
		})
	}
}

// TestInOtherWords: no sentence of a plan or of an action decides anything.
func TestInOtherWords(t *testing.T) {
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		w := newReleaseScene(t, "image", "exporter")
		return w.healer, w.request
	})
}
