// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Bounds of a plan in the status.
const (
	maxLosses    = 10
	maxLossBytes = 512
)

// NewPlan returns the plan of an operation as statuses have it; nil if it has no actions. boot is the name of the boot under which
// it was made.
func NewPlan(operation, boot string, actions []fault.Action) *v1.Plan {
	if len(actions) == 0 {
		return nil
	}
	changes := changesOf(boot, actions)
	p := &v1.Plan{Operation: operation, Hash: v1.PlanHash(changes), Changes: changes, Actions: int32(len(actions)), Lossless: true}
	for _, a := range actions {
		if a.Lossless {
			continue
		}
		p.Lossless = false
		if loss := printable.Clip(a.Loss, maxLossBytes); loss != "" && !slices.Contains(p.Loss, loss) && len(p.Loss) < maxLosses {
			p.Loss = append(p.Loss, loss)
		}
	}
	return p
}

// planHash identifies the changes of a plan.
func planHash(boot string, actions []fault.Action) string {
	return v1.PlanHash(changesOf(boot, actions))
}

// changesOf lists the changes of a plan in lines, without the sentences about it. Two plans with equal lines do the same. Mounts and
// devices are numbered within a boot, so it is named with them. The kubelet makes another record of a container each time that its
// start fails, so such records count by their container, once. The lines that exceed the bounds are there as their SHA-256.
func changesOf(boot string, actions []fault.Action) (lines []string) {
	if slices.ContainsFunc(actions, endsWithBoot) {
		lines = append(lines, "boot "+strconv.QuoteToASCII(boot))
	}
	for _, a := range actions {
		line := changeOf(a)
		if a.Kind == fault.RemoveContainerRecord && slices.Contains(lines, line) {
			continue
		}
		lines = append(lines, line)
	}
	if most := v1.MaxPlanChanges - 1; len(lines) > most+1 {
		rest := lines[most:]
		lines = append(lines[:most:most], fmt.Sprintf("and %d more with SHA-256 %s", len(rest), v1.PlanHash(rest)))
	}
	return lines
}

// endsWithBoot reports whether an action is about a mount or a device, which the kernel numbers within a boot.
func endsWithBoot(a fault.Action) bool { return a.Mount != nil || a.Device != nil }

// changeOf is the change of one action. Names are quoted, so that none can pass for another part of the line.
func changeOf(a fault.Action) string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	add("%s", a.Kind)
	if m := a.Mount; m != nil {
		add(" mount %+q: ID %d, number %d on %d, namespace %d, device %+q, root %+q, type %+q", m.Point, m.ID, m.MountInfoID, m.ParentID,
			m.Namespace, m.Device, m.Root, m.FSType)
	}
	if d := a.Device; d != nil {
		add(" device %+q: sequence %d, image %+q", d.Name, d.Sequence, d.Image)
	}
	if f := a.File; f != nil {
		add(" file %+q: inode %d, made %d", f.Path, f.Inode, f.Made)
	}
	if a.Pod != nil {
		add(" pod %+q", a.Pod.UID)
	}
	if a.Container != "" {
		add(" container %+q", a.Container)
	}
	var subjects []fault.Key
	for _, key := range a.For {
		if s := key.Subject(); !slices.Contains(subjects, s) {
			subjects = append(subjects, s)
			add("; for %s of pod %+q, container %+q, volume %+q", s.Code, s.PodUID, s.Container, s.Volume)
		}
	}
	line := b.String()
	if len(line) > v1.MaxPlanChangeBytes {
		end := " and more with SHA-256 " + v1.PlanHash([]string{line})
		line = line[:v1.MaxPlanChangeBytes-len(end)] + end
	}
	return line
}
