// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// deviceReport is what the verb holders has to say.
type deviceReport interface {
	reportText() string
	// finalError is ErrFaults if there are faults, and errUnseen if there are none but may be.
	finalError() error
}

// writeReport writes a report, and ends as it does.
func writeReport(w io.Writer, f outputFormat, r deviceReport) error {
	if err := writeFormat(w, f, r, r.reportText); err != nil {
		return err
	}
	return r.finalError()
}

func (r *holdersReport) finalError() error {
	if r.Device.State == stateInUse && !r.foreign {
		return nil // a device in use as it should be is not held, even if others have it, too
	}
	return holdersError([]deviceUse{r.deviceUse}, r.Looked.coverageOrigin)
}

func (r *abandonedReport) finalError() error { return holdersError(r.Devices, r.Looked.coverageOrigin) }

// holdersError returns the error with which a verb ends that has looked at these. A caller that does not see what other
// processes do cannot distinguish a held device from one in use.
func holdersError(uses []deviceUse, from coverageOrigin) error {
	if slices.ContainsFunc(uses, deviceUse.isHeld) && !from.blind {
		return verb.ErrFaults
	}
	return unseenError(from.NotLookedAt)
}

func (u deviceUse) isHeld() bool { return u.Device.State == stateHeld }

// reportText is the device, a block for each holder, and a line about what was looked at.
func (r *holdersReport) reportText() string {
	var text strings.Builder
	r.deviceUse.writeText(&text)
	if r.foreign {
		r.writeHolders(&text) // the user who names a device wants to know
	}
	if r.isHeld() || r.foreign || r.Device.State == stateUnknown {
		text.WriteByte('\n')
	}
	r.Looked.coverageOrigin.writeGapText(&text)
	text.WriteString(r.Looked.coverageText())
	writeNotes(&text, r.Looked.Notes)
	return text.String()
}

// reportText is that of each device.
func (r *abandonedReport) reportText() string {
	var text strings.Builder
	held := 0
	for _, u := range r.Devices {
		u.writeText(&text)
		text.WriteByte('\n')
		if u.isHeld() {
			held++
		}
	}
	r.Looked.coverageOrigin.writeGapText(&text)
	switch {
	case len(r.Devices) == 0 && r.Looked.mayHideHolder():
		text.WriteString("No device was seen that is mounted somewhere, but not where the kubelet runs. ")
	case len(r.Devices) == 0:
		text.WriteString("Every mounted device is also mounted where the kubelet runs. ")
	default:
		fmt.Fprintf(&text, "%s mounted only elsewhere, %d held. ", verb.Count(len(r.Devices), "device"), held)
	}
	text.WriteString(r.Looked.coverageText())
	writeNotes(&text, r.Looked.Notes)
	return text.String()
}

// writeGapText is what was not looked at, and what is to be known of the rest.
func (l coverageOrigin) writeGapText(b *strings.Builder) {
	for _, e := range l.NameErrors {
		fmt.Fprintf(b, "Names of containers and pods may be missing: %s\n", printable.Quoted(e))
	}
	writeGaps(b, l.NotLookedAt)
}

func (u deviceUse) writeText(text *strings.Builder) {
	d := u.Device
	fmt.Fprintf(text, "%s %s\n", d.titleText(), u.verdictText())
	if d.MountPoint != "" {
		writeRow(text, terminal.Screen{}, 2, "mounted", d.MountPoint)
	}
	if d.Untested != "" {
		writeRow(text, terminal.Screen{}, 2, "untested", "the kernel could not be asked whether it is busy: "+d.Untested)
	}
	switch d.State {
	case stateInUse:
		u.writeUses(text)
	case stateHeld, stateUnknown:
		u.writeHolders(text)
	}
	for i, h := range u.Hidden {
		if i == 0 {
			text.WriteString("\n  What was found does not explain that it is busy. Any of these may hold it unseen:\n")
		}
		fmt.Fprintf(text, "    - %s\n", printable.Quoted(h))
	}
}

// titleText is the device in one word and what it is.
func (d useDevice) titleText() string {
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
	case len(u.Holders) == 0:
		return "is held, and what holds it cannot be seen."
	case u.Device.Removable && u.partial:
		return "is held. The mounts named here can be unmounted, and others that were not seen may hold it as well."
	case u.Device.Removable:
		return "is held. It can be released by unmounting what is named here."
	}
	return "is held."
}

// writeUses says why a device is in use as it should be. A list of its users would be long, and of no use to people.
func (u deviceUse) writeUses(text *strings.Builder) {
	for _, why := range u.Device.InUseBy {
		writeRow(text, terminal.Screen{}, 2, "because", why)
	}
	namespaces := map[uint64]bool{}
	mounts := 0
	for _, h := range u.Holders {
		if h.Mount != nil {
			mounts++
			namespaces[h.MountNamespace] = true
		}
	}
	writeRow(text, terminal.Screen{}, 2, "used by", fmt.Sprintf("%s in %s, %d others; -o json lists all",
		verb.Count(mounts, "mount"), verb.Count(len(namespaces), "mount namespace"), len(u.Holders)-mounts))
}

// maxHolders is how many holders of a device are told to people.
const maxHolders = 50

func (u deviceUse) writeHolders(text *strings.Builder) {
	if !u.Device.Removable && u.Device.Why != "" && len(u.Holders) > 0 {
		writeRow(text, terminal.Screen{}, 2, "stays", u.Device.Why)
	}
	for _, h := range u.Holders[:min(len(u.Holders), maxHolders)] {
		text.WriteByte('\n')
		h.writeText(text)
	}
	if more := len(u.Holders) - maxHolders; more > 0 {
		fmt.Fprintf(text, "\n  and %s more, which -o json lists\n", verb.Count(more, "holder"))
	}
	if u.release != "" {
		fmt.Fprintf(text, "\n  To release it:\n\n    %s\n", printable.Quoted(u.release))
	}
	u.writePatches(text)
}

func (h useHolder) writeText(text *strings.Builder) {
	where := h.Path
	if h.Mount != nil {
		where = h.MountPoint
	}
	fmt.Fprintf(text, "  %s %s\n", h.Kind, printable.Quoted(where))
	container := h.Container
	if h.Since != nil {
		container += ", made " + h.Since.UTC().Format(time.RFC3339)
	}
	if h.ContainerID == "" {
		container = ""
	}
	pod := ""
	if h.Pod != (scanPod{}) {
		pod = h.Pod.String()
	}
	if h.Workload != "" {
		pod += ", of " + h.Workload
	}
	for _, line := range [][2]string{
		{"namespace", h.namespaceText()}, {"process", h.processText()}, {"pod", pod}, {"container", container}, {"image", h.Image},
		{"carried in", h.VolumeMount.String()}, {"on host", h.HostPath}, {"detail", h.Detail}, {"why", h.Why},
	} {
		writeRow(text, terminal.Screen{}, 4, line[0], line[1])
	}
}

// namespaceText says where a mount is, and what other than processes keeps that namespace alive.
func (h useHolder) namespaceText() string {
	switch {
	case h.Mount == nil:
		return ""
	case h.MountNamespace == 0:
		return "its number may not be read"
	case h.inhabited:
		return strconv.FormatUint(h.MountNamespace, 10)
	}
	return fmt.Sprintf("%d, kept by %s", h.MountNamespace, h.KeptBy)
}

// maxPIDs is how many processes of a holder are told to people.
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

// writePatches writes each change once that keeps it from happening again.
func (u deviceUse) writePatches(text *strings.Builder) {
	var shown []string
	for _, h := range u.Holders {
		if h.Patch == "" || slices.Contains(shown, h.Patch) {
			continue
		}
		shown = append(shown, h.Patch)
		whose := h.Workload
		if whose == "" {
			whose = "what made pod " + h.Pod.String()
		}
		fmt.Fprintf(text, "\n  So that it does not come back, patch %s:\n\n", printable.Quoted(whose))
		for line := range strings.Lines(h.Patch) {
			fmt.Fprintf(text, "    %s\n", printable.Quoted(strings.TrimSuffix(line, "\n")))
		}
	}
}

// writeRow writes a row of a block, unless it is empty. On a terminal it is broken at the width; machines read it unbroken.
func writeRow(b *strings.Builder, s terminal.Screen, indent int, name, value string) {
	if value != "" {
		b.WriteString(s.Wrap(fmt.Sprintf("%*s%-10s ", indent, "", name), printable.Quoted(value), indent+11))
	}
}
