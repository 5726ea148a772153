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
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/probe"
)

// volumeKey identifies a volume by the names that a finding has for it.
type volumeKey struct{ podUID, volume string }

// updateFaults updates the set of present faults, notifies the observer of new ones, and reports whether the set
// changed. It ignores mounts of pods that are not known. A fault stays in the set if the scan could not judge its
// volume, because nothing disproves it.
func (w *volumeWatcher) updateFaults(volumes []*volume.Health) (changed bool) {
	present, judged, inconclusive := map[fault.Key]fault.Finding{}, map[fault.Mount]bool{}, map[volumeKey]*volume.Health{}
	located := map[fault.Key]bool{}
	for _, v := range volumes {
		// A volume that was not probed could not be judged, nor could its copies. A volume whose mount is gone was
		// judged.
		if v.Verdict.Code == "" && v.Evidence.Answer.State != probe.Alive && v.Evidence.Answer.State != probe.Gone {
			inconclusive[volumeKey{v.Evidence.Pod.UID, v.Evidence.Name}] = v
		}
		for _, f := range v.Findings() {
			key := f.Key()
			if pod := w.sentinel.Pods.PodByUID(f.Pod.UID); pod == nil || w.sentinel.Guard.Mode(f.Code, pod) == Off {
				continue
			}
			judged[placeOf(f.Mount)] = true
			if _, several := present[key]; several { // the first stands for all mounts at its place
				continue
			}
			present[key], located[key.Location()] = f, true
			if known, ok := w.present[key]; !ok || !isSameMount(known.Mount, f.Mount) {
				changed = true
				w.sentinel.Observer.Found(f, 0)
			}
		}
	}
	kept := map[fault.Key]fault.Finding{}
	for key, f := range w.present {
		if judged[placeOf(f.Mount)] { // if with another result
			continue
		}
		v := inconclusive[volumeKey{f.Pod.UID, f.Volume}]
		if v == nil || w.sentinel.Pods.PodByUID(f.Pod.UID) == nil {
			continue
		}
		// The broken mount may still be that of the volume or a copy of it, unless another mount is at the volume's place.
		if own := faults.MountOf(v.Evidence.Mount); placeOf(f.Mount) != placeOf(own) || isSameMount(f.Mount, own) {
			kept[key] = f
		}
	}
	maps.Copy(present, kept)
	changed = changed || len(present) != len(w.present)
	w.present = present
	maps.DeleteFunc(w.backoffs, func(at fault.Key, backoff *repairBackoff) bool {
		return !located[at] && time.Now().After(backoff.at) && time.Since(backoff.lastAttempt) > repairBurst*repairRefill
	})
	return changed
}

// placeOf is where a mount is, whatever is mounted there.
func placeOf(m fault.Mount) fault.Mount { return fault.Mount{Namespace: m.Namespace, Point: m.Point} }

// isSameMount reports whether two mounts of one place are one. It compares the IDs that the kernel never uses again, if both
// have one. The root of a mount may get a mark that it was deleted.
func isSameMount(a, b fault.Mount) bool {
	if a.ID != 0 && b.ID != 0 {
		return a.ID == b.ID
	}
	return a.MountInfoID == b.MountInfoID
}

// probeError returns why no volume could be probed, or nil if one was.
func probeError(volumes []*volume.Health) error {
	asked := func(v *volume.Health) bool { return v.Evidence.Answer.State != probe.NotProbed }
	if len(volumes) == 0 || slices.ContainsFunc(volumes, asked) {
		return nil
	}
	return fmt.Errorf("none of the node's %d volumes that can die could be asked: volume %q of pod %q: %s", len(volumes), volumes[0].Evidence.Name,
		volumes[0].Evidence.Pod.UID, strings.Join(volumes[0].Evidence.Answer.Evidence, "; "))
}
