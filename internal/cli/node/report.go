// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/jsonparts"
	"kubediag.org/kubediag/internal/mountstate"
)

// scanReport is the result of a scan, as it is in JSON.
type scanReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Node is the name of the machine, Time when the scan ended.
	Node    string      `json:"node"`
	Time    time.Time   `json:"time"`
	Verdict scanVerdict `json:"verdict"`
	// Faults are in the order of their places. It is never null.
	Faults []scanFault  `json:"faults"`
	Looked scanCoverage `json:"looked"`

	blind bool    // the caller lacks the privileges to see the mounts and files of others
	specs podFile // that were given
	// unjudged are faults of the scans before, in a watch, that this one could not look for.
	unjudged []scanFault
	// links lists the mounts of pods, for a page; nil: not all faults were looked for.
	links func() []nodeLink
}

// scanFault is one fault. Pod names and namespaces are empty if they are not known.
type scanFault struct {
	// Place is the number of the row that the fault is in: faults of one cause share it.
	Place  int          `json:"place"`
	Code   fault.Code   `json:"code"`
	Impact fault.Impact `json:"impact"`
	Heal   fault.Heal   `json:"heal"`
	// Summary and Plan are for people, as Evidence is.
	Summary string `json:"summary"`
	Plan    string `json:"plan"`
	// Prevention is the change that makes the fault impossible, or why there is none.
	Prevention string  `json:"prevention"`
	Pod        scanPod `json:"pod"`
	Container  string  `json:"container"`
	// Volume is the name in the pod's spec, as far as that is known; else the kubelet's.
	Volume string    `json:"volume"`
	Mount  scanMount `json:"mount"`
	// Details are the facts that are known beside.
	Details fault.Details `json:"details"`
	// Holder is who holds a device.
	Holder   string          `json:"holder,omitempty"`
	Commands []fault.Command `json:"commands"`
	Evidence []string        `json:"evidence"`
}

// kubeletVolume is the kubelet's name of the volume. Unlike Volume, it is the same whether the pod's spec is known or not.
func (f *scanFault) kubeletVolume() string { return cmp.Or(f.Details.PersistentVolume, f.Volume) }

// ofDevice reports whether the fault is of a device. Its pod is the holder's.
func (f *scanFault) ofDevice() bool { return fault.Known().Entry(f.Code).Scope == fault.ScopeDevice }

// volumeText is the volume for people, with both of its names.
func (f *scanFault) volumeText() string {
	if name := f.Details.PersistentVolume; name != "" && name != f.Volume {
		return f.Volume + " (PersistentVolume " + name + ")"
	}
	return f.Volume
}

type scanPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type scanMount struct {
	// Namespace is an inode number, for mounts in another namespace than the kubelet's.
	Namespace uint64 `json:"namespace,omitempty"`
	// ID is never used again by the kernel; it is left out where the kernel has none (before 6.8).
	ID uint64 `json:"id,omitempty"`
	// MountInfoID is column 1 of mountinfo. The kernel gives the number to another mount later.
	MountInfoID int    `json:"mountInfoID,omitempty"`
	Point       string `json:"point"`
	Root        string `json:"root"`
	Device      string `json:"device"`
	FSType      string `json:"fsType"`
}

func newScanMount(m fault.Mount) scanMount {
	return scanMount{m.Namespace, m.ID, m.MountInfoID, m.Point, m.Root, m.Device, m.FSType}
}

// scanCoverage is the extent of a scan, so that a clean result can be trusted.
type scanCoverage struct {
	Kubelet scannedKubelet `json:",inline"`
	Gaps    scanGaps       `json:",inline"`
	// Notes are the assumptions behind the result, and the sources that did not answer in time.
	Notes  []string   `json:"notes,omitempty"`
	Counts scanCounts `json:",inline"`
	// Classes count the mounts at the kubelet's root and below by the reason for which they are there. It is absent if they were not looked at.
	Classes *mountstate.Classes `json:"classes,omitempty"`
	// KubeletRenews says whether this kubelet replaces stale binds by itself: true, false or "unknown".
	KubeletRenews any `json:"kubeletRenews"`
	// RenewedByKubelet counts stale binds that are no faults for that reason.
	RenewedByKubelet int `json:"renewedByKubelet"`
	// Unproven are places that were found, and whose own state is not known. It is never null. With one of them no result
	// is clean.
	Unproven     []unprovenPlace `json:"unproven"`
	PodSpecs     podSpecs        `json:"podSpecs"`
	PodNames     podNameSources  `json:",inline"`
	Milliseconds float64         `json:"milliseconds"`

	directories []string // of pods, by UID
}

// MarshalJSON implements json.Marshaler: the coverage is one flat object.
func (c scanCoverage) MarshalJSON() ([]byte, error) { return jsonparts.Marshal(c) }

// UnmarshalJSON implements json.Unmarshaler, for the last scan.
func (c *scanCoverage) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, c) }

// scannedKubelet is the kubelet of the scanned node.
type scannedKubelet struct {
	Root string `json:"kubeletRoot"`
	// PID is 0 if no kubelet process was made use of, and the mount namespace is that of the shell.
	PID int `json:"kubeletPID"`
	// Down is whether no process of the node is a kubelet.
	Down bool `json:"kubeletDown,omitempty"`
	// MountNamespace is an inode number.
	MountNamespace uint64 `json:"mountNamespace"`
}

// scanGaps are the gaps of a scan.
type scanGaps struct {
	// Denied counts processes that could not be read, Partial mount namespaces that were read in part.
	Denied  int `json:"denied"`
	Partial int `json:"partial"`
	// NotLookedAt are the gaps. Each may hide a fault.
	NotLookedAt []mountstate.Gap `json:"notLookedAt,omitempty"`
	// Interrupted is whether the scan was ended before it was through.
	Interrupted bool `json:"interrupted,omitempty"`
}

// scanCounts counts the subjects of a scan.
type scanCounts struct {
	// Pods are the pods that have a directory, Mounts the lines of the mount table, Binds the subPath binds.
	Pods   int `json:"pods"`
	Mounts int `json:"mounts"`
	Binds  int `json:"binds"`
	// DevicesElsewhere are the block devices that are mounted in other mount namespaces alone.
	DevicesElsewhere int `json:"devicesElsewhere"`
	// Volumes are those that can die under their pods, and were probed.
	Volumes int `json:"volumes"`
	// Containers are those whose mounts were compared with the container runtime's records.
	Containers int `json:"containers,omitempty"`
}

// podNameSources are where names of pods come from.
type podNameSources struct {
	// From is where names of pods come from: "pods" (the file), "runtime" or "logs". It is never null.
	From []string `json:"namesFrom"`
	// Errors are the errors of sources of names.
	Errors []string `json:"nameErrors,omitempty"`
}

// addSurvey takes in the sum of all searches.
func (c *scanCoverage) addSurvey(sum mountstate.Survey) {
	l := sum.Coverage
	c.Counts = scanCounts{Pods: l.Pods, Mounts: l.Mounts, Binds: l.Binds, DevicesElsewhere: l.Devices, Volumes: l.Volumes, Containers: l.Containers}
	c.Kubelet.MountNamespace, c.RenewedByKubelet = cmp.Or(l.Namespace, c.Kubelet.MountNamespace), l.Renewed
	if l.RenewsBinds != nil {
		c.KubeletRenews = *l.RenewsBinds
	}
	if passed := l.Namespaces; passed != nil {
		c.Gaps.Denied, c.Gaps.Partial = passed.Denied, passed.Partial
	}
	c.Notes, c.Gaps.NotLookedAt = append(c.Notes, l.Notes...), append(c.Gaps.NotLookedAt, sum.Unknown.Gaps...)
	for _, p := range sum.Unknown.Places {
		place := unprovenPlace{Point: p.Point, Why: p.Reason, Pod: scanPod{p.Pod.UID, p.Pod.Namespace, p.Pod.Name}, Volume: p.Volume}
		if p.Namespace == "" {
			place.Container = p.Container
		}
		c.Unproven = append(c.Unproven, place)
	}
}

// unprovenPlace is a place that could not be judged.
type unprovenPlace struct {
	Point string `json:"point"`
	Why   string `json:"why"`
	// Pod and Volume are empty if they are not known.
	Pod    scanPod `json:"pod,omitzero"`
	Volume string  `json:"volume,omitempty"`
	// Container has the mount, at Point; empty for a mount of the kubelet.
	Container string `json:"container,omitempty"`
}

// String is the place for people.
func (u unprovenPlace) String() string {
	pod := fault.Pod{UID: u.Pod.UID, Namespace: u.Pod.Namespace, Name: u.Pod.Name}
	return mountstate.Place{Pod: pod, Container: u.Container, Volume: u.Volume, Point: u.Point, Reason: u.Why}.String()
}

// podSpecs says whether specs were given, and of how many of the pods that have a directory.
type podSpecs struct {
	Given bool `json:"given"`
	Pods  int  `json:"pods"`
}

func newReport(findings []fault.Finding, l scanCoverage, caller fault.Caller) *scanReport {
	report := &scanReport{SchemaVersion: schemaVersion, Faults: []scanFault{}, Looked: l}
	for _, finding := range findings {
		mount := newScanMount(finding.Mount)
		if mount.Namespace == l.Kubelet.MountNamespace {
			mount.Namespace = 0
		}
		a := fault.Known().Advise(finding, caller)
		report.Faults = append(report.Faults, scanFault{
			Code: finding.Code, Impact: a.Impact, Heal: a.Heal, Summary: a.Summary, Plan: a.Plan, Prevention: a.Prevention,
			Pod: scanPod{finding.Pod.UID, finding.Pod.Namespace, finding.Pod.Name}, Container: finding.Container,
			Volume: cmp.Or(finding.Details.SpecVolume, finding.Volume),
			Mount:  mount, Details: finding.Details, Holder: finding.Holder,
			Commands: append([]fault.Command{}, a.Commands...), Evidence: append([]string{}, finding.Evidence...),
		})
	}
	report.Looked.Unproven = append([]unprovenPlace{}, l.Unproven...)
	report.Looked.PodNames.From = append([]string{}, l.PodNames.From...)
	report.Verdict = sumUp(report.groupPlaces())
	report.Verdict.NotJudged = len(l.Unproven)
	report.Verdict.Clean = !report.hasFaults() && !report.hasUnknowns()
	return report
}

// finalError is errUnseen if not all was looked at or judged, and there are no faults, or it is not known which there are;
// else verb.ErrFaults if there are faults, or no kubelet runs.
func (r *scanReport) finalError() error {
	if r.hasFaults() && !r.blind && !r.Looked.Gaps.Interrupted {
		return verb.ErrFaults
	}
	if places := r.Looked.Unproven; len(r.Looked.Gaps.NotLookedAt) == 0 && len(places) > 0 {
		return fmt.Errorf("%w: %s", errUnjudged, places[0])
	}
	return unseenError(r.Looked.Gaps.NotLookedAt)
}

// hasUnknowns reports whether a fault may be there that was not seen.
func (r *scanReport) hasUnknowns() bool {
	return len(r.Looked.Gaps.NotLookedAt)+len(r.Looked.Unproven) > 0
}

// hasFaults reports whether anything was found that is wrong.
func (r *scanReport) hasFaults() bool { return len(r.Faults) > 0 || r.Looked.Kubelet.Down }

// String is the pod for people.
func (p scanPod) String() string {
	if p == (scanPod{}) {
		return "" // a holder need not be in a pod
	}
	if p.Name == "" {
		return "uid " + p.UID + " (its name is not known)"
	}
	return p.Namespace + "/" + p.Name + ", uid " + p.UID
}

// shortName is the pod for a table.
func (p scanPod) shortName() string {
	if p.Name == "" {
		return "pod " + p.UID
	}
	return p.Namespace + "/" + p.Name
}

// replacesUnknown is the value of KubeletRenews if no kubelet has answered.
const replacesUnknown = "unknown"
