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

// faultIdentity identifies a fault in two scans. A mount that has taken the place of another and is broken is the same
// fault.
type faultIdentity struct {
	code                          fault.Code
	pod, container, volume, point string
	namespace                     uint64
	device                        string
}

func (f *scanFault) identity() faultIdentity {
	k := faultIdentity{f.Code, f.Pod.UID, f.Container, f.kubeletVolume(), f.Mount.Point, f.Mount.Namespace, f.Details.Device}
	if f.Code == fault.HeldDevice { // the pod is the holder's, whom only the container runtime knows
		k.pod, k.container = "", ""
	}
	return k
}

// byIdentity are the faults of a scan.
func (r *scanReport) byIdentity() map[faultIdentity]*scanFault {
	all := map[faultIdentity]*scanFault{}
	for i := range r.Faults {
		all[r.Faults[i].identity()] = &r.Faults[i]
	}
	return all
}
