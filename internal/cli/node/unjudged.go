// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"kubediag.org/kubediag/internal/fault"
)

// whyUnjudged says why this scan could not find a fault that an earlier one has found. It is empty if this scan could:
// then a fault that it has not found is gone. hadSpecs is whether the earlier scan had the specs of pods.
func (r *scanReport) whyUnjudged(f *scanFault, hadSpecs bool) string {
	l, entry := r.Looked, fault.Known().Entry(f.Code)
	switch {
	case l.Gaps.Interrupted:
		return "the scan was interrupted"
	case f.Pod.UID != "" && entry.Scope != fault.ScopeDevice && !slices.Contains(l.directories, f.Pod.UID):
		return "" // the kubelet has nothing of the pod here any more
	case hadSpecs && r.specs.PodByUID(f.Pod.UID) == nil && entry.Symptom.BySpec(fault.Mount{Point: f.Mount.Point, Root: f.Mount.Root}, l.Kubelet.Root):
		return "the scan that found it had the spec of its pod, and this one has not"
	}
	for _, u := range l.Unproven {
		if u.Point == f.Mount.Point || f.Details.Path != "" && u.Point == f.Details.Path ||
			f.Volume != "" && u.Volume == f.kubeletVolume() && u.Pod.UID == f.Pod.UID {
			return "this place could not be judged: " + u.Why
		}
	}
	// A mount in the kubelet's own table is found without a look at other processes.
	if len(l.Gaps.NotLookedAt) > 0 && (f.Mount.Namespace != 0 || !entry.Scope.OfPod()) {
		return "not everything was looked at: " + l.Gaps.NotLookedAt[0].String()
	}
	return ""
}

// key identifies the fault in several scans, and in the work of other programs of the node.
func (f *scanFault) key() fault.Key { return f.toFinding().Key() }

// toFinding is the fault as it was found.
func (f *scanFault) toFinding() fault.Finding {
	m := f.Mount
	return fault.Finding{
		Code: f.Code, Pod: fault.Pod{UID: f.Pod.UID, Namespace: f.Pod.Namespace, Name: f.Pod.Name}, Container: f.Container, Volume: f.Volume,
		Details: f.Details, Holder: f.Holder,
		Mount: fault.Mount{Namespace: m.Namespace, ID: m.ID, MountInfoID: m.MountInfoID, Point: m.Point, Root: m.Root, Device: m.Device, FSType: m.FSType},
	}
}

// keepNumbers gives the faults the numbers of an earlier scan. It reports whether that scan was of the same kubelet and has all of them;
// else the numbers are those of this scan.
func (r *scanReport) keepNumbers(earlier *scanReport) bool {
	had := earlier.byKey()
	if len(r.Faults) == 0 || r.Looked.Kubelet.Root != earlier.Looked.Kubelet.Root || r.Node != earlier.Node {
		return false
	}
	for i := range r.Faults {
		if had[r.Faults[i].key()] == nil {
			return false
		}
	}
	for i := range r.Faults {
		r.Faults[i].Place = had[r.Faults[i].key()].Place
	}
	slices.SortStableFunc(r.Faults, func(a, b scanFault) int { return a.Place - b.Place })
	return true
}

// byKey are the faults of a scan.
func (r *scanReport) byKey() map[fault.Key]*scanFault {
	all := map[fault.Key]*scanFault{}
	for i := range r.Faults {
		all[r.Faults[i].key()] = &r.Faults[i]
	}
	return all
}
