// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
)

// crowd is a node with more dead file systems than one look can wait for: which of them are asked is another part every time.
type crowd struct {
	*wreck
	judged, turn int
}

func (c *crowd) Inspect(context.Context, volume.Selection) (*volume.Survey, error) {
	all := slices.Clone(c.volumes)
	for i := range all {
		v := *all[i]
		if v.Code, v.Answer.State = fault.HungMount, probe.Hung; (i+c.turn)%len(all) >= c.judged {
			v.Code, v.Answer.State = "", probe.Unasked
		}
		all[i] = &v
	}
	c.turn += 7
	return &volume.Survey{Volumes: all}, nil
}

// TestFaultsThatCouldNotBeJudgedStay: they are told of once, and looked at less and less, also where at last nothing can be
// asked any more.
func TestFaultsThatCouldNotBeJudgedStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 200
		c := &crowd{wreck: newWreck(many), judged: 144}
		p := c.patrol()
		p.Mode, p.Volumes = Observe, c
		var waits []time.Duration
		look := func(times int) {
			for range times {
				if err := p.scan(t.Context()); err != nil {
					t.Fatal(err)
				}
				waits = append(waits, time.Until(p.nextScan))
				time.Sleep(waits[len(waits)-1])
			}
		}
		look(100)
		if c.found != many || len(p.present) != many {
			t.Errorf("%d faults were told of, and %d are present, want %d", c.found, len(p.present), many)
		}
		if last := waits[len(waits)-1]; last != scanInterval {
			t.Errorf("the next look in %s, want %s: nothing has changed for long", last, scanInterval)
		}
		c.judged = 0
		look(1)
		if c.found != many || len(p.present) != many || p.noProbe == nil {
			t.Errorf("nothing could be asked: %d told, %d present, blind: %v", c.found, len(p.present), p.noProbe)
		}
		c.judged = many
		look(1)
		if c.found != many || len(p.present) != many || p.noProbe != nil {
			t.Errorf("all could be asked: %d told, %d present, blind: %v", c.found, len(p.present), p.noProbe)
		}
	})
}

// TestWhatBecomesOfAFault whose volume is seen again.
func TestWhatBecomesOfAFault(t *testing.T) {
	for name, c := range map[string]struct {
		becomes func(w *wreck)
		stays   bool
	}{
		"could not be asked":   {func(w *wreck) { w.volumes[0].Code, w.volumes[0].Answer.State = "", probe.Unasked }, true},
		"answers something":    {func(w *wreck) { w.volumes[0].Code, w.volumes[0].Answer.State = "", probe.Broken }, true},
		"answers":              {func(w *wreck) { w.volumes[0].Code, w.volumes[0].Answer.State = "", probe.Alive }, false},
		"has vanished":         {func(w *wreck) { w.volumes[0].Code, w.volumes[0].Answer.State = "", probe.Vanished }, false},
		"is no longer mounted": {func(w *wreck) { w.volumes = nil }, false},
		"is another mount, which could not be asked": {func(w *wreck) {
			w.volumes[0].Code, w.volumes[0].Answer.State = "", probe.Unasked
			w.volumes[0].Mount.Unique++
		}, false},
	} {
		w := newWreck(1)
		p := w.patrol()
		p.Mode = Observe
		if err := p.scan(t.Context()); err != nil || len(p.present) != 1 {
			t.Fatalf("%s: %d faults at first, %v", name, len(p.present), err)
		}
		copied := fault.Finding{Pod: fault.Pod{UID: "uid"}, Volume: "v0", Mount: fault.Mount{ID: 99, Namespace: 1, Point: "/copy"}}
		p.present[faultKeyOf(&copied.Mount, fault.HungMount)] = copied
		c.becomes(w)
		changed := p.updateFaults(w.volumes)
		if stays := len(p.present) == 2; stays != c.stays || changed == c.stays || w.found != 1 {
			t.Errorf("a volume that %s: %d of its 2 faults stay, told %d times, changed: %v", name, len(p.present), w.found, changed)
		}
	}
}

// TestOneMountHasOneFault: where one of two volumes that lie on it could not be judged, the other tells what it has.
func TestOneMountHasOneFault(t *testing.T) {
	w := newWreck(2)
	w.volumes[1].Mount = w.volumes[0].Mount
	p := w.patrol()
	p.updateFaults(w.volumes)
	w.volumes[0].Code = fault.StaleFileHandle
	w.volumes[1].Code, w.volumes[1].Answer.State = "", probe.Unasked
	if p.updateFaults(w.volumes); len(p.present) != 1 || p.present[faultKeyOf(&w.volumes[0].Findings()[0].Mount, fault.StaleFileHandle)].Code == "" {
		t.Errorf("faults of one mount: %+v", p.present)
	}
}

// TestAPatrolThatCanAskNothingDoesNotWatch, says so once, and watches again when it can.
func TestAPatrolThatCanAskNothingDoesNotWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{wreck: newWreck(3)}
		p := c.patrol()
		p.Mode, p.Volumes, p.Kubelet = Observe, c, &sameKubelet{kubelet.Node{Root: "/nowhere"}}
		p.Sentinel.setBindStatus(Status{Watching: true})
		for _, watching := range []bool{false, true} {
			ctx, stop := context.WithTimeout(t.Context(), scanInterval+5*tickInterval)
			p.run(ctx)
			stop()
			if now := p.Status(); now.Watching != watching || len(c.trouble) != 1 {
				t.Errorf("%d volumes of 3 can be asked: watching: %v, told: %q", c.judged, now.Watching, c.trouble)
			}
			if present, unknown := p.Faults(); slices.Contains(unknown, fault.HungMount) == watching || len(present) != c.judged {
				t.Errorf("%d volumes of 3 can be asked: %d faults, unknown: %v", c.judged, len(present), unknown)
			}
			c.judged = 3
		}
	})
}
