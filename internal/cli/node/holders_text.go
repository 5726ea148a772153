// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// deviceReport is a report of the verb holders.
type deviceReport interface {
	reportText(s terminal.Screen) string
	// finalError is ErrFaults if there are faults, and errUnseen if there are none but may be.
	finalError() error
}

// writeReport writes a report, and ends as it does.
func writeReport(w io.Writer, f verb.Format, r deviceReport) error {
	if err := render.Write(w, f, r, r.reportText); err != nil {
		return err
	}
	return r.finalError()
}

func (r *holdersReport) finalError() error {
	if r.Device.State == stateInUse && !r.foreign {
		return nil // a device in use as it should be is not held, even if others have it, too
	}
	return holdersError([]deviceUse{r.deviceUse}, r.Looked.Origin)
}

func (r *abandonedReport) finalError() error { return holdersError(r.Devices, r.Looked.Origin) }

// holdersError returns the error with which a verb ends after a look at these devices. A caller that cannot see the mounts
// and files of other processes cannot distinguish a held device from a device in use.
func holdersError(uses []deviceUse, from coverageOrigin) error {
	if slices.ContainsFunc(uses, deviceUse.isHeld) && !from.blind {
		return verb.ErrFaults
	}
	return unseenError(from.NotLookedAt)
}

func (u deviceUse) isHeld() bool { return u.Device.State == stateHeld }

// reportText is the device, a block for each holder, and a line about the coverage.
func (r *holdersReport) reportText(s terminal.Screen) string { return r.reportTextAbove(s, 0) }

// reportTextAbove is a report with some lines below it.
func (r *holdersReport) reportTextAbove(s terminal.Screen, below int) string {
	p, coverage := &render.Page{Screen: s}, &render.Page{Screen: s}
	r.Looked.addTo(coverage, "")
	below += strings.Count(coverage.String(), "\n") + 1
	r.deviceUse.addTo(p, below)
	listed := r.foreign || r.Device.State == stateInUse && r.Device.MountPoint != ""
	switch {
	case r.foreign:
		r.addHolders(p, below) // the user who names a device wants to know
	case listed: // those that have a file on the mount that was named
		users := slices.DeleteFunc(slices.Clone(r.Holders), func(h useHolder) bool { return h.Kind == string(devholder.Mount) })
		blocking := 0
		for _, h := range users {
			if h.Verdict.Blocks {
				blocking++
			}
		}
		busy := "nothing was found because of which the kernel refuses to unmount it"
		if blocking > 0 {
			busy = "the kernel refuses to unmount it because of " + verb.Count(blocking, "user")
		}
		p.Row(2, "unmount", busy)
		addEach(p, users, below, "user")
	}
	if r.isHeld() || listed || r.Device.State == stateUnknown {
		p.Blank()
	}
	return p.String() + coverage.String()
}

// reportText is that of each device.
func (r *abandonedReport) reportText(s terminal.Screen) string {
	held := 0
	for _, u := range r.Devices {
		if u.isHeld() {
			held++
		}
	}
	verdict := fmt.Sprintf("%s mounted only elsewhere, %d held. ", verb.Count(len(r.Devices), "device"), held)
	switch {
	case len(r.Devices) == 0 && r.Looked.mayHideHolder():
		verdict = "No device was seen that is mounted somewhere, but not where the kubelet runs. "
	case len(r.Devices) == 0:
		verdict = "Every mounted device is also mounted where the kubelet runs. "
	}
	coverage := &render.Page{Screen: s}
	r.Looked.addTo(coverage, verdict)
	below := strings.Count(coverage.String(), "\n")
	var devices []string
	for _, u := range r.Devices {
		one := &render.Page{Screen: s}
		u.addTo(one, below+2) // the blank, and the number of other devices
		one.Blank()
		devices = append(devices, one.String())
	}
	p := &render.Page{Screen: s}
	p.List(devices, below, "device")
	return p.String() + coverage.String()
}

// addTo adds the gaps of the look, the verdict, the coverage, and the notes on it.
func (l holderCoverage) addTo(p *render.Page, verdict string) {
	passed, processes, from := l.Passed, l.Processes, l.Origin
	for _, e := range from.NameErrors {
		p.Line(0, "Names of containers and pods may be missing: %s", e)
	}
	addGaps(p, from.NotLookedAt)
	parts := []string{fmt.Sprintf("%s in %s (%s)", verb.Count(passed.Mounts, "mount"), verb.Count(passed.Namespaces, "mount namespace"), passed.Backend)}
	if processes.Looked {
		tasks := "processes"
		if processes.Threads {
			tasks = "processes and threads"
		}
		parts = append(parts, fmt.Sprintf("what %d %s have open", processes.Tasks, tasks),
			verb.Count(processes.Overlays, "overlay"), verb.Count(processes.Loops, "loop device"))
	}
	text := fmt.Sprintf("Looked at %s in %s: %s.", strings.Join(parts, ", "), render.Milliseconds(from.Milliseconds),
		locationText(from.KubeletPID, from.KubeletRoot, from.MountNamespace))
	var left []string // processes that could not be read
	if processes.Locked > 0 && !l.mayHideHolder() {
		left = append(left, countProcesses(processes.Locked)+" that may not be looked into")
	}
	if processes.SilentLoops > 0 {
		left = append(left, verb.Count(processes.SilentLoops, "loop device")+" over a file that does not answer")
	}
	if processes.Stuck > 0 {
		left = append(left, countProcesses(processes.Stuck)+" that did not answer")
	}
	if len(left) > 0 {
		text += " Not looked at: " + strings.Join(left, ", ") + "."
	}
	p.Line(0, "%s%s", verdict, text)
	for _, note := range from.Notes {
		p.Line(0, "Note: %s.", note)
	}
}

// addTo adds the device and its holders. Some lines come below.
func (u deviceUse) addTo(p *render.Page, below int) {
	d := u.Device
	p.Line(0, "%s %s", d.titleText(), u.verdictText())
	p.Row(2, "mounted", d.MountPoint)
	if d.Untested != "" {
		p.Row(2, "untested", "the kernel could not be asked whether it is busy: "+d.Untested)
	}
	switch d.State {
	case stateInUse: // a list of its users would be long, and of no use to people
		for _, why := range d.InUseBy {
			p.Row(2, "because", why)
		}
		namespaces := map[uint64]bool{}
		mounts := 0
		for _, h := range u.Holders {
			if h.Mount != nil {
				mounts++
				namespaces[h.MountNamespace] = true
			}
		}
		p.Row(2, "used by", fmt.Sprintf("%s in %s, %d others; -o json lists all",
			verb.Count(mounts, "mount"), verb.Count(len(namespaces), "mount namespace"), len(u.Holders)-mounts))
	case stateHeld, stateUnknown:
		u.addHolders(p, below)
	}
	for i, h := range u.Hidden {
		if i == 0 {
			p.Blank()
			p.Line(2, "What was found does not explain that it is busy. Any of these may hold it unseen:")
		}
		p.Line(4, "- %s", h)
	}
}

// titleText is the path of the device, with its number, kind and file systems.
func (d useDevice) titleText() string {
	if d.Node == "" {
		name := "file system"
		if len(d.FileSystems) > 0 {
			name = d.FileSystems[0].Type
		}
		return printable.Quoted(fmt.Sprintf("%s (%s)", name, d.Number))
	}
	what := []string{d.Number, d.Kind}
	if d.Parent != "" {
		what = append(what, "partition of "+d.Parent)
	}
	for _, fs := range d.FileSystems {
		what = append(what, fs.Type)
	}
	return printable.Quoted(fmt.Sprintf("%s (%s)", d.Node, strings.Join(slices.Compact(what), ", ")))
}

func (u deviceUse) verdictText() string {
	switch {
	case u.Device.State == stateFree && u.partial:
		return "is free as far as was seen."
	case u.Device.State == stateFree:
		return "is free: no holder was found."
	case u.Device.State == stateUnknown:
		return "is mounted in a mount namespace that may not be looked into: it is not known whether it is held or in normal use."
	case u.Device.State == stateInUse:
		return "is in use, and not held."
	case u.left:
		return "is left over from a raw block volume of a pod that is gone."
	case len(u.Holders) == 0:
		return "is held, and what holds it cannot be seen."
	case !slices.ContainsFunc(u.Holders, func(h useHolder) bool { return !h.Verdict.Inferred }):
		return "is held, and what holds it is not proven."
	case u.Device.Removable && u.partial:
		return "is held. The mounts named here can be unmounted, and others that were not seen may hold it as well."
	case u.Device.Removable:
		return "is held. It can be released by unmounting what is named here."
	}
	return "is held."
}

// maxHolders bounds the holders of a device in a text for people.
const maxHolders = 50

// addHolders adds the holders, the way to release the device and the changes that keep it from happening again.
func (u deviceUse) addHolders(p *render.Page, below int) {
	if !u.Device.Removable && u.Device.Why != "" && len(u.Holders) > 0 {
		p.Row(2, "stays", u.Device.Why)
	}
	advice := &render.Page{Screen: p.Screen}
	if u.release != "" {
		advice.Blank()
		advice.Line(2, "To release it:")
		advice.Blank()
		advice.Paste(4, u.release)
	}
	// Each change once that keeps it from happening again. A screen has room for one.
	var patched []useHolder
	for _, alike := range verb.Group(u.Holders, func(h useHolder) string { return h.Origin.Patch }) {
		if alike[0].Origin.Patch != "" {
			patched = append(patched, alike[0])
		}
	}
	more := 0
	if advice.Screen.Terminal && len(patched) > 1 {
		more, patched = len(patched)-1, patched[:1]
	}
	for _, h := range patched {
		advice.Blank()
		advice.Line(2, "So that it does not come back, patch %s:", cmp.Or(h.Container.Workload, "what made pod "+h.Container.Pod.String()))
		advice.Blank()
		for line := range strings.Lines(h.Origin.Patch) {
			advice.Paste(4, strings.TrimSuffix(line, "\n"))
		}
	}
	if more > 0 {
		advice.Blank()
		advice.Line(2, "and %s more, which -o json lists", verb.Plural(more, "patch", "patches"))
	}
	addEach(p, u.Holders, below+strings.Count(advice.String(), "\n"), "holder")
	p.Text(advice.String())
}

// addEach adds holders of a device, or its users, which noun names. Some lines come below.
func addEach(p *render.Page, holders []useHolder, below int, noun string) {
	var parts []string
	for _, h := range holders[:min(len(holders), maxHolders)] {
		one := &render.Page{Screen: p.Screen}
		one.Blank()
		h.addTo(one)
		parts = append(parts, one.String())
	}
	others := strings.Count(p.String(), "\n") + below
	p.Text(p.Screen.FitParts(parts, others, func(n int) string { return leftOutText(p.Screen, n+len(holders)-len(parts), noun) }))
	if more := len(holders) - len(parts); more > 0 && !p.Screen.Terminal {
		p.Text(leftOutText(p.Screen, more, noun))
	}
}

// leftOutText is the line about holders that are left out.
func leftOutText(s terminal.Screen, n int, noun string) string {
	return "\n" + s.Wrap("  ", fmt.Sprintf("and %s more, which -o json lists", verb.Count(n, noun)), 2)
}

func (h useHolder) addTo(p *render.Page) {
	where := h.Path
	if h.Mount != nil {
		where = h.MountPoint
	}
	p.Line(2, "%s %s", h.Kind, where)
	in, container, pod := h.Container, h.Container.Name, ""
	if in.Since != nil {
		container += ", made " + in.Since.UTC().Format(time.RFC3339)
	}
	if in.ID == "" {
		container = ""
	}
	if in.Pod != (scanPod{}) {
		pod = in.Pod.String()
	}
	if in.Workload != "" {
		pod += ", of " + in.Workload
	}
	namespace, through, busy := "", "", ""
	switch {
	case h.Mount == nil:
	case h.MountNamespace == 0:
		namespace = "its number may not be read"
	case h.inhabited:
		namespace = strconv.FormatUint(h.MountNamespace, 10)
	default: // those of its holders that are not processes
		namespace = fmt.Sprintf("%d, kept by %s", h.MountNamespace, h.KeptBy)
	}
	if h.Mount == nil && h.MountPoint != "" { // a process has its file by this mount
		through = fmt.Sprintf("%s in mount namespace %d", h.MountPoint, h.MountNamespace)
	}
	if h.Verdict.Blocks {
		busy = "the kernel refuses to unmount the mount because of it"
	}
	for _, line := range [][2]string{
		{"namespace", namespace}, {"process", h.processText()}, {"pod", pod}, {"container", container}, {"image", in.Image},
		{"carried in", h.Origin.VolumeMount.String()}, {"on host", h.Origin.HostPath}, {"by mount", through}, {"detail", h.Verdict.Detail},
		{"busy", busy}, {"why", h.Verdict.Why},
	} {
		p.Row(4, line[0], line[1])
	}
}

// maxPIDs bounds the processes of a holder in a text for people.
const maxPIDs = 10

func (h useHolder) processText() string {
	var pids []string
	for _, pid := range h.PIDs[:min(len(h.PIDs), maxPIDs)] {
		pids = append(pids, strconv.Itoa(pid))
	}
	text := strings.Join(pids, ", ")
	if more := len(h.PIDs) - maxPIDs; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if h.Command != "" {
		text += " (" + h.Command + ")"
	}
	return text
}

// String is the volume mount for people. m may be nil.
func (m *volumeMount) String() string {
	if m == nil {
		return ""
	}
	name := ""
	if m.Name != "" {
		name = "volumeMount " + strconv.Quote(m.Name) + ", "
	}
	return fmt.Sprintf("%shostPath %q at %q, mountPropagation %s", name, m.HostPath, m.MountPath, m.MountPropagation)
}
