// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// scanReport is what scan tells, as it is in JSON.
type scanReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Faults is never null.
	Faults []scanFault `json:"faults"`
	Looked looked      `json:"looked"`

	blind bool // the caller lacks what it takes to see what others do
}

// scanFault is one fault. Pod names and namespaces are empty where they are not known.
type scanFault struct {
	Code      fault.Code `json:"code"`
	Pod       scanPod    `json:"pod"`
	Container string     `json:"container"`
	Volume    string     `json:"volume"`
	Mount     scanMount  `json:"mount"`
	// Holder is who holds a device.
	Holder   string   `json:"holder,omitempty"`
	Evidence []string `json:"evidence"`
}

type scanPod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type scanMount struct {
	// Namespace is an inode number, for mounts that are in another namespace than was looked at.
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

// looked is what was looked at, so that a clean result can be trusted.
type looked struct {
	KubeletRoot string `json:"kubeletRoot"`
	// KubeletPID is 0 where no kubelet process was made use of, and the mount namespace is that of the shell.
	KubeletPID int `json:"kubeletPID"`
	// MountNamespace is an inode number.
	MountNamespace uint64 `json:"mountNamespace"`
	// Denied counts processes that may not be looked into, Partial mount namespaces that were seen in part.
	Denied  int `json:"denied"`
	Partial int `json:"partial"`
	// NotLookedAt is what was not looked at and may hide a fault.
	NotLookedAt []gap `json:"notLookedAt,omitempty"`
	// Interrupted is whether the scan was ended before it was through.
	Interrupted bool `json:"interrupted,omitempty"`
	// Notes say what the result rests on, and for what was waited.
	Notes []string `json:"notes,omitempty"`
	// Pods are the pods that have a directory, Mounts the lines of the mount table, Binds the subPath binds.
	Pods   int `json:"pods"`
	Mounts int `json:"mounts"`
	Binds  int `json:"binds"`
	// DevicesElsewhere are the block devices that are mounted in other mount namespaces alone.
	DevicesElsewhere int `json:"devicesElsewhere"`
	// Volumes are those that can die under their pods, and were asked. VolumesIncomplete is what could not be.
	Volumes           int      `json:"volumes"`
	VolumesIncomplete []string `json:"volumesIncomplete,omitempty"`
	// KubeletRenews tells whether this kubelet replaces stale binds by itself: true, false or "unknown".
	KubeletRenews any `json:"kubeletRenews"`
	// RenewedByKubelet counts stale binds that are no faults for that reason.
	RenewedByKubelet int `json:"renewedByKubelet"`
	// Unproven are places that could not be judged. It is never null.
	Unproven []unproven `json:"unproven"`
	PodSpecs podSpecs   `json:"podSpecs"`
	// NamesFrom is where names of pods come from: "pods" (the file), "runtime" or "logs". It is never null.
	NamesFrom []string `json:"namesFrom"`
	// NameErrors is why a source of names could not be asked.
	NameErrors   []string `json:"nameErrors,omitempty"`
	Milliseconds float64  `json:"milliseconds"`
}

// pass takes in what one of several passes over the mount namespaces was refused, and what it skipped.
func (l *looked) pass(denied, partial int, skipped []string) {
	l.Denied, l.Partial = max(l.Denied, denied), max(l.Partial, partial)
	for _, g := range skippedGaps(skipped) {
		if !slices.Contains(l.NotLookedAt, g) {
			l.NotLookedAt = append(l.NotLookedAt, g)
		}
	}
}

// unproven is a place that could not be judged.
type unproven struct {
	Point string `json:"point"`
	Why   string `json:"why"`
}

// podSpecs says whether specs were given, and of how many of the pods that have a directory.
type podSpecs struct {
	Given bool `json:"given"`
	Pods  int  `json:"pods"`
}

func newReport(findings []fault.Finding, l looked) *scanReport {
	r := &scanReport{SchemaVersion: schemaVersion, Faults: []scanFault{}, Looked: l}
	for _, f := range findings {
		elsewhere := f.Mount.Namespace
		if elsewhere == l.MountNamespace {
			elsewhere = 0
		}
		r.Faults = append(r.Faults, scanFault{
			Code: f.Code, Pod: scanPod{f.Pod.UID, f.Pod.Namespace, f.Pod.Name}, Container: f.Container, Volume: f.Volume,
			Holder: f.Holder,
			Mount: scanMount{
				Namespace: elsewhere, ID: f.Mount.ID, MountInfoID: f.Mount.MountInfoID, Point: f.Mount.Point, Root: f.Mount.Root,
				Device: f.Mount.Device, FSType: f.Mount.FSType,
			},
			Evidence: append([]string{}, f.Evidence...),
		})
	}
	r.Looked.Unproven = append([]unproven{}, l.Unproven...)
	r.Looked.NamesFrom = append([]string{}, l.NamesFrom...)
	return r
}

// write ends with errUnseen where not all was looked at, and there are no faults, or there is no telling which there are;
// else with ErrFaults where there are faults; if it could write.
func (r *scanReport) write(w io.Writer, f format) error {
	put := func() error { return write(w, r.text()) }
	if f == jsonFormat {
		put = func() error { return writeJSON(w, r) }
	}
	if err := put(); err != nil {
		return err
	}
	if len(r.Faults) > 0 && !r.blind && !r.Looked.Interrupted {
		return ErrFaults
	}
	return unseen(r.Looked.NotLookedAt)
}

// text is a block for each fault and one line about what was looked at.
func (r *scanReport) text() string {
	var b strings.Builder
	for _, f := range r.Faults {
		f.text(&b)
	}
	for _, u := range r.Looked.Unproven {
		fmt.Fprintf(&b, "Not judged: %s: %s\n", printable.Quoted(u.Point), printable.Quoted(u.Why))
	}
	if slices.ContainsFunc(r.Faults, func(f scanFault) bool { return f.Pod.Name == "" && f.Pod.UID != "" }) {
		for _, e := range r.Looked.NameErrors {
			fmt.Fprintf(&b, "Names of pods are missing: %s\n", printable.Quoted(e))
		}
	}
	for _, text := range r.Looked.VolumesIncomplete {
		fmt.Fprintf(&b, "Not judged: %s\n", printable.Quoted(text))
	}
	gapLines(&b, r.Looked.NotLookedAt)
	b.WriteString(r.summary())
	noteLines(&b, r.Looked.Notes)
	return b.String()
}

func (f scanFault) text(b *strings.Builder) {
	entry, _ := fault.Lookup(f.Code)
	fmt.Fprintf(b, "%s (%s): %s\n", f.Code, entry.Severity, entry.Title)
	lines := [][2]string{
		{"pod", f.Pod.String()}, {"container", f.Container}, {"volume", f.Volume}, {"device", f.device()}, {"mount", f.Mount.Point},
		{"holder", f.Holder},
	}
	label := "why"
	for _, e := range f.Evidence {
		lines = append(lines, [2]string{label, e})
		label = ""
	}
	for _, line := range append(lines, remedies(entry)...) {
		if line[1] != "" {
			fmt.Fprintf(b, "  %-10s %s\n", line[0], printable.Quoted(line[1]))
		}
	}
	b.WriteByte('\n')
}

// remedies are what to do about a fault, as lines of text. The runbook is on no node.
func remedies(entry fault.Entry) [][2]string {
	return [][2]string{{"repair", entry.Repair}, {"runbook", entry.Runbook + " in the project's documentation"}}
}

// device is what is held, where that is the fault.
func (f scanFault) device() string {
	if f.Code != fault.HeldDevice {
		return ""
	}
	return f.Mount.Device
}

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

// summary is one line.
func (r *scanReport) summary() string {
	l := r.Looked
	found := count(len(r.Faults), "fault") + " found"
	if len(r.Faults) == 0 {
		found = "No faults found"
	}
	if len(l.NotLookedAt) > 0 {
		found += " in what was looked at"
	}
	where := fmt.Sprintf("kubelet %d", l.KubeletPID)
	if l.KubeletPID == 0 {
		where = "no kubelet process was made use of"
	}
	sentences := []string{found, fmt.Sprintf("Looked at %s, %s, %s and %s in %.1f ms: %s, root %s, mount namespace %d",
		count(l.Pods, "pod"), count(l.Binds, "subPath bind"), count(l.Volumes, "volume"), count(l.Mounts, "mount"), l.Milliseconds,
		where, printable.Quoted(strconv.Quote(l.KubeletRoot)), l.MountNamespace)}
	if n := len(l.Unproven); n > 0 {
		sentences = append(sentences, count(n, "place")+" could not be judged")
	}
	if l.RenewedByKubelet > 0 {
		sentences = append(sentences, count(l.RenewedByKubelet, "stale bind")+" left out, which this kubelet renews by itself")
	}
	stale := func(f scanFault) bool { return f.Code == fault.StaleSubPath }
	if l.KubeletRenews == renewsUnknown && slices.ContainsFunc(r.Faults, stale) {
		sentences = append(sentences, "It is not known whether this kubelet renews stale binds by itself, as kubelets from 1.19 do")
	}
	specs := "Without pod specs (--pods) a source that was moved away is not seen, and one that is gone for good looks replaced"
	if l.PodSpecs.Given {
		specs = fmt.Sprintf("Specs were given of %d of the pods", l.PodSpecs.Pods)
	}
	return strings.Join(append(sentences, specs), ". ") + ".\n"
}

// renewsUnknown is what looked has for a kubelet that cannot be asked.
const renewsUnknown = "unknown"

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
