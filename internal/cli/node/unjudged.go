// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// deletedMark ends the root of a mount whose source was deleted, as the kernel shows it.
const deletedMark = "//deleted"

// whyUnjudged says why this scan could not find a fault that an earlier one has found. It is empty if this scan could:
// then a fault that it has not found is gone. hadSpecs is whether the earlier scan had the specs of pods.
func (r *scanReport) whyUnjudged(f *scanFault, hadSpecs bool) string {
	l := r.Looked
	family := f.Code.Entry().Family
	switch {
	case l.Interrupted:
		return "the scan was interrupted"
	case f.Pod.UID != "" && family != fault.FamilyDevice && !slices.Contains(l.directories, f.Pod.UID):
		return "" // the kubelet has nothing of the pod here any more
	case hadSpecs && r.specs.PodByUID(f.Pod.UID) == nil && l.foundBySpec(f):
		return "the scan that found it had the spec of its pod, and this one has not"
	}
	for _, u := range l.Unproven {
		if u.Point == f.Mount.Point || f.Details.Path != "" && u.Point == f.Details.Path ||
			f.Volume != "" && u.Volume == f.kubeletVolume() && u.Pod.UID == f.Pod.UID {
			return "this place could not be judged: " + u.Why
		}
	}
	// A mount in the kubelet's own table is found without a look at other processes.
	if len(l.NotLookedAt) > 0 && (f.Mount.Namespace != 0 || family == fault.FamilyDevice || family == fault.FamilyOrphan) {
		return "not everything was looked at: " + l.NotLookedAt[0].String()
	}
	return ""
}

// foundBySpec reports whether only the spec of its pod shows a fault: a source that a container cannot get, a hostPath,
// a source that was moved, a pod that no source knows.
func (l *scanCoverage) foundBySpec(f *scanFault) bool {
	switch f.Code.Entry().Family {
	case fault.FamilyDevice:
		return false
	case fault.FamilyOrphan:
		return true
	case fault.FamilyVolume:
		return !strings.HasPrefix(f.Mount.Point, l.KubeletRoot+"/")
	case fault.FamilyBind:
		return f.Code != fault.StaleSubPath || !strings.HasSuffix(f.Mount.Root, deletedMark)
	}
	return true
}

// key identifies the fault in several scans, and in what other programs of the node do.
func (f *scanFault) key() fault.Key {
	return fault.Finding{
		Code: f.Code, Pod: fault.Pod{UID: f.Pod.UID}, Container: f.Container, Volume: f.Volume, Details: f.Details,
		Mount: fault.Mount{Namespace: f.Mount.Namespace, Point: f.Mount.Point},
	}.Key()
}

// byKey are the faults of a scan.
func (r *scanReport) byKey() map[fault.Key]*scanFault {
	all := map[fault.Key]*scanFault{}
	for i := range r.Faults {
		all[r.Faults[i].key()] = &r.Faults[i]
	}
	return all
}
