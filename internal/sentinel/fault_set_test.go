// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// partialVolumes has more dead file systems than one scan can wait for. Each scan probes another part of them.
type partialVolumes struct {
	*deadVolumes
	asked, offset int
}

func (p *partialVolumes) Inspect(context.Context, mountstate.Scope) (*volume.Survey, error) {
	all := slices.Clone(p.volumes)
	for i := range all {
		v := *all[i]
		if v.Verdict.Code, v.Evidence.Answer.State = fault.HungMount, probe.Hung; (i+p.offset)%len(all) >= p.asked {
			v.Verdict.Code, v.Evidence.Answer.State = "", probe.NotProbed
		}
		all[i] = &v
	}
	p.offset += 7
	return &volume.Survey{Volumes: all}, nil
}

// TestUnaskedFaultsStayPresent: a fault is reported once and scanned less and less often, even if no volume can be
// probed at last.
func TestUnaskedFaultsStayPresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 200
		p := &partialVolumes{deadVolumes: newDeadVolumes(many), asked: 144}
		watcher := p.watcher()
		watcher.sentinel.Guard, watcher.sentinel.Volumes = always{Observe}, p
		var waits []time.Duration
		scan := func(times int) {
			for range times {
				if err := watcher.scan(t.Context()); err != nil {
					t.Fatal(err)
				}
				waits = append(waits, time.Until(watcher.nextScan))
				time.Sleep(waits[len(waits)-1])
			}
		}
		scan(100)
		if p.found != many || len(watcher.present) != many {
			t.Errorf("%d faults were reported, and %d are present, want %d", p.found, len(watcher.present), many)
		}
		if last := waits[len(waits)-1]; last != scanInterval {
			t.Errorf("the next scan in %s, want %s: nothing has changed for long", last, scanInterval)
		}
		p.asked = 0
		scan(1)
		if p.found != many || len(watcher.present) != many || watcher.probeErr == nil {
			t.Errorf("no volume could be probed: %d reported, %d present, error: %v", p.found, len(watcher.present), watcher.probeErr)
		}
		p.asked = many
		scan(1)
		if p.found != many || len(watcher.present) != many || watcher.probeErr != nil {
			t.Errorf("all could be probed: %d reported, %d present, error: %v", p.found, len(watcher.present), watcher.probeErr)
		}
	})
}

// TestUpdateFaultsOnRescan scans the volume of a fault again after a change.
func TestUpdateFaultsOnRescan(t *testing.T) {
	for name, c := range map[string]struct {
		becomes func(d *deadVolumes)
		stays   bool
	}{
		"could not be asked": {func(d *deadVolumes) {
			d.volumes[0].Verdict.Code, d.volumes[0].Evidence.Answer.State = "", probe.NotProbed
		}, true},
		"answers something":    {func(d *deadVolumes) { d.volumes[0].Verdict.Code, d.volumes[0].Evidence.Answer.State = "", probe.Broken }, true},
		"answers":              {func(d *deadVolumes) { d.volumes[0].Verdict.Code, d.volumes[0].Evidence.Answer.State = "", probe.Alive }, false},
		"has vanished":         {func(d *deadVolumes) { d.volumes[0].Verdict.Code, d.volumes[0].Evidence.Answer.State = "", probe.Gone }, false},
		"is no longer mounted": {func(d *deadVolumes) { d.volumes = nil }, false},
		"is another mount, which could not be asked": {func(d *deadVolumes) {
			d.volumes[0].Verdict.Code, d.volumes[0].Evidence.Answer.State = "", probe.NotProbed
			d.volumes[0].Evidence.Mount.Unique++
		}, false},
	} {
		d := newDeadVolumes(1)
		watcher := d.watcher()
		watcher.sentinel.Guard = always{Observe}
		if err := watcher.scan(t.Context()); err != nil || len(watcher.present) != 1 {
			t.Fatalf("%s: %d faults at first, %v", name, len(watcher.present), err)
		}
		copied := fault.Finding{Code: fault.HungMount, Pod: fault.Pod{UID: "uid"}, Volume: "v0", Mount: fault.Mount{ID: 99, Namespace: 1, Point: "/copy"}}
		watcher.present[copied.Key()] = copied
		c.becomes(d)
		changed := watcher.updateFaults(d.volumes)
		if stays := len(watcher.present) == 2; stays != c.stays || changed == c.stays || d.found != 1 {
			t.Errorf("a volume that %s: %d of its 2 faults stay, reported %d times, changed: %v", name, len(watcher.present), d.found, changed)
		}
	}
}

// TestMountHasOneFault: if one of two volumes on a mount could not be judged, the fault of the other counts.
func TestMountHasOneFault(t *testing.T) {
	d := newDeadVolumes(2)
	d.volumes[1].Evidence.Mount = d.volumes[0].Evidence.Mount
	watcher := d.watcher()
	watcher.updateFaults(d.volumes)
	d.volumes[0].Verdict.Code = fault.StaleFileHandle
	d.volumes[1].Verdict.Code, d.volumes[1].Evidence.Answer.State = "", probe.NotProbed
	if watcher.updateFaults(d.volumes); len(watcher.present) != 1 || watcher.present[d.volumes[0].Findings()[0].Key()].Code == "" {
		t.Errorf("faults of one mount: %+v", watcher.present)
	}
}

// TestWatcherWithoutProbesIsNotWatching: it reports this once, and watches again if a volume can be probed.
func TestWatcherWithoutProbesIsNotWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &partialVolumes{deadVolumes: newDeadVolumes(3)}
		watcher := p.watcher()
		watcher.sentinel.Mode, watcher.sentinel.Guard, watcher.sentinel.Volumes, watcher.sentinel.Kubelet = Observe, always{Observe}, p, &fixedKubelet{kubelet.Node{Layout: kubelet.Layout{Root: "/nowhere"}}}
		watcher.sentinel.setStatus(fault.SearchSubPaths, Status{Watching: true})
		for _, watching := range []bool{false, true} {
			ctx, stop := context.WithTimeout(t.Context(), scanInterval+5*tickInterval)
			watcher.run(ctx)
			stop()
			if now := watcher.sentinel.Status(); now.Watching != watching || len(p.trouble) != 1 {
				t.Errorf("%d volumes of 3 can be probed: watching: %v, reported: %q", p.asked, now.Watching, p.trouble)
			}
			if present, unknown := watcher.sentinel.Faults(); slices.Contains(unknown, fault.HungMount) == watching || len(present) != p.asked {
				t.Errorf("%d volumes of 3 can be asked: %d faults, unknown: %v", p.asked, len(present), unknown)
			}
			p.asked = 3
		}
	})
}

// always is a Guard with one mode for all faults, and without budgets.
type always struct{ mode Mode }

// Mode implements Guard.
func (a always) Mode(fault.Code, *corev1.Pod) Mode { return a.mode }

// Acquire implements Guard.
func (a always) Acquire(context.Context, fault.Finding, *corev1.Pod) bool { return a.mode == Automatic }

// Ended implements Guard.
func (always) Ended(fault.Key, fault.Pod, error) {}

// Subscribe implements Guard.
func (always) Subscribe() <-chan struct{} { return nil }
