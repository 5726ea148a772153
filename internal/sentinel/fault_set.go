// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// owner is a volume by the names that a fault has for it.
type owner struct{ podUID, volume string }

// compare keeps the list of faults, tells of those that were not on it, and whether it is another now. What nobody knows
// the pod of is not on it. What was on it and could not be judged stays: nothing about it was disproven.
func (p *patrol) compare(volumes []*volume.Health) (changed bool) {
	now, places, unsure := map[spot]fault.Finding{}, map[site]bool{}, map[owner]*volume.Health{}
	for _, v := range volumes {
		if unjudged(v) {
			unsure[owner{v.Pod.UID, v.Name}] = v
		}
		for _, f := range v.Findings() {
			s := spotOf(&f.Mount, f.Code)
			if p.Pods.PodByUID(f.Pod.UID) == nil {
				continue
			}
			now[s], places[site{s.namespace, s.point}] = f, true
			if _, known := p.present[s]; !known {
				changed = true
				p.Observer.Found(f, 0)
			}
		}
	}
	stay := map[spot]fault.Finding{}
	for s, f := range p.present {
		if places[site{s.namespace, s.point}] { // judged, if not as before
			continue
		}
		if v := unsure[owner{f.Pod.UID, f.Volume}]; v != nil && s.mayBeOf(v) && p.Pods.PodByUID(f.Pod.UID) != nil {
			stay[s] = f
		}
	}
	maps.Copy(now, stay)
	changed = changed || len(now) != len(p.present)
	p.present = now
	maps.DeleteFunc(p.retries, func(s site, b *setback) bool {
		return !places[s] && time.Now().After(b.until) && time.Since(b.used) > repairBurst*repairRefill
	})
	return changed
}

// faultsOf are the faults of volumes, as they are published.
func faultsOf(present map[spot]fault.Finding) []*Fault {
	var faults []*Fault
	for _, f := range present {
		faults = append(faults, &Fault{Finding: f})
	}
	return faults
}

// unjudged tells whether nothing is known of a volume's mount, nor then of its copies: it was not asked, say. Of one that
// has vanished it is known that it is gone.
func unjudged(v *volume.Health) bool {
	return v.Code == "" && v.Answer.State != probe.Alive && v.Answer.State != probe.Vanished
}

// mayBeOf tells whether a broken mount may still be that of a volume, or a copy of it: it is not where another mount has
// come to the volume's place.
func (s spot) mayBeOf(v *volume.Health) bool {
	return s.namespace != v.Mount.Namespace.Inode || s.point != v.Mount.Point || s.is(&v.Mount)
}

// is goes by the number that is never used again, where both have one.
func (s spot) is(m *mountns.Mount) bool {
	if s.id != 0 && m.Unique != 0 {
		return s.id == m.Unique
	}
	return s.number == m.ID
}

// blind says why none of the volumes could be asked, if that is so.
func blind(volumes []*volume.Health) error {
	asked := func(v *volume.Health) bool { return v.Answer.State != probe.Unasked }
	if len(volumes) == 0 || slices.ContainsFunc(volumes, asked) {
		return nil
	}
	return fmt.Errorf("none of the node's %d volumes that can die could be asked: volume %q of pod %q: %s", len(volumes), volumes[0].Name,
		volumes[0].Pod.UID, strings.Join(volumes[0].Answer.Evidence, "; "))
}
