// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemount finds mounts of a node that no pod needs: stacks and staging paths. It removes those of stacks, one at a time.
//
// A stack is a place at which the same thing is mounted many times, each mount on the one before. A driver that is asked to publish a
// volume again and mounts it again makes one, and so does a service that binds the kubelet's directory to itself at each start.
// Each mount takes memory, makes every read of the mount table longer, and counts against fs.mount-max.
//
// It decides from the mount table of the kubelet, the specs and records of its pods, and changes nothing but in Unmount, which removes one mount that equals
// the one beneath it, and never by force. It rests on package mount, on mount_namespaces(7) and on proc_sys_fs(5).
package nodemount

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// minAlike is how many mounts of the same thing lie at a place at least. Two are common: a directory that is bound to itself, and
// the copy of it that the kernel has made in a shared tree.
const minAlike = 3

// maxStacks bounds how many places are described. The largest come first.
const maxStacks = 100

// nearLimit is the part of fs.mount-max, in hundredths, from which on the number of mounts is a fault by itself.
const nearLimit = 90

// Inspector looks at the mounts of a node. Its fields are set before its first use; then it may be used by several goroutines.
type Inspector struct {
	Kubelet kubelet.Locator
	// Pods lists the pods of the node whose specs are known; nil: there are none, and no staging path is proven to be left over.
	Pods func() []*corev1.Pod
	// Attachments says which staging paths may be unmounted; nil: none may.
	Attachments Attachments
	// Runner runs Job for Unmount; nil: one for each.
	Runner *subprocess.Runner
}

// Evidence is the base of the judgement of stacks.
type Evidence struct {
	// Mounts is how many mounts the kubelet's namespace has, and Most how many it may have; 0: that is not known.
	Mounts int `json:"mounts"`
	Most   int `json:"most,omitempty"`
	// Stacks are the largest first, and More counts those that are left out.
	Stacks []Stack `json:"stacks,omitempty"`
	More   int     `json:"more,omitempty"`
	// Staged are left over, unless there is a doubt.
	Staged []Staged `json:"staged,omitempty"`
	Doubt  string   `json:"doubt,omitempty"`
}

// Stack is a place at which mounts of the same thing lie on each other.
type Stack struct {
	Point string `json:"point"`
	// Top is the topmost mount, Source its source in the mount table.
	Top    fault.Mount `json:"top"`
	Source string      `json:"source,omitempty"`
	// Driver is the CSI driver that the kubelet's record beside the place names.
	Driver string `json:"driver,omitempty"`
	// Layers is how many mounts lie at the place, and Alike how many of the topmost are of the same thing.
	Layers int `json:"layers"`
	Alike  int `json:"alike"`
	// Surplus is how many of the topmost may go, one after the other. Kept says why no more may.
	Surplus int             `json:"surplus,omitempty"`
	Kept    string          `json:"kept,omitempty"`
	surplus []mountns.Mount // the topmost first
}

// Look reads the mount table of the kubelet.
func (i *Inspector) Look(ctx context.Context) (*Evidence, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	ns, table, err := node.OwnedMounts()
	if err != nil {
		return nil, fmt.Errorf("look for stacked mounts: %w", err)
	}
	e := observe(&node.Layout, ns, table)
	if text, err := sys.ReadProc("sys/fs/mount-max", nil); err == nil { // without it the number of mounts says nothing
		e.Most, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err := i.addStaged(ctx, e, node, ns, table); err != nil || len(e.Stacks) == 0 {
		return e, err
	}
	return e, node.Do(ctx, func() error {
		for n := range e.Stacks {
			if record, err := kubelet.ReadVolumeRecordAt(table, e.Stacks[n].Point); err == nil { // else the driver is not known
				e.Stacks[n].Driver = record.Driver
			}
		}
		return ctx.Err()
	})
}

// observe finds the stacks at the kubelet's root and below it. It looks at each mount a bounded number of times.
func observe(l *kubelet.Layout, ns mountns.Namespace, table *mountinfo.Table) *Evidence {
	e := &Evidence{Mounts: len(table.Mounts())}
	peers := peerGroups(table)
	on := map[int]int{}       // how many mounts lie on the one with that number
	covered := map[int]bool{} // by a mount at the same place
	for _, m := range table.Mounts() {
		if parent, ok := table.ByID(m.Parent); ok && parent.ID != m.ID {
			on[parent.ID]++
			covered[parent.ID] = covered[parent.ID] || parent.Point == m.Point
		}
	}
	for _, m := range table.Mounts() {
		if covered[m.ID] || !mountinfo.Within(l.Root, m.Point) && !mountinfo.Within(l.PodsDir(), m.Point) {
			continue
		}
		if below, ok := table.ByID(m.Parent); !ok || below.Point != m.Point {
			continue // it lies there alone, as most do
		}
		layers := table.Stack(m)
		differs := func(o mountinfo.Mount) bool { return o.FSType != m.FSType || o.Source != m.Source || o.Root != m.Root }
		alike := slices.IndexFunc(layers, differs)
		if alike < 0 {
			alike = len(layers)
		}
		if alike < minAlike {
			continue
		}
		s := Stack{Point: m.Point, Top: faults.MountOf(mountns.Mount{Mount: m, Namespace: ns}), Source: m.Source, Layers: len(layers), Alike: alike}
		s.Kept = s.whyNone(l, table)
		if s.Kept == "" {
			s.addSurplus(ns, layers, on, peers)
		}
		e.Stacks = append(e.Stacks, s)
	}
	slices.SortStableFunc(e.Stacks, func(a, b Stack) int { return cmp.Compare(b.Alike, a.Alike) })
	if len(e.Stacks) > maxStacks {
		e.Stacks, e.More = e.Stacks[:maxStacks], len(e.Stacks)-maxStacks
	}
	return e
}

// peerGroups counts the mounts of each peer group.
func peerGroups(table *mountinfo.Table) map[int]int {
	peers := map[int]int{}
	for _, m := range table.Mounts() {
		peers[m.Shared]++
	}
	return peers
}

// spreads reports whether an unmount on a mount changes other mounts of its namespace: those of its peer group. If the layers of a stack
// are of one group, as the kernel has copied each to all others, the first unmount can take all of them away.
func spreads(group int, peers map[int]int) bool { return group != 0 && peers[group] > 1 }

// whyNone says why none of the mounts may go; empty: their layers decide.
func (s *Stack) whyNone(l *kubelet.Layout, table *mountinfo.Table) string {
	if v, ok := l.ParseInsideVolume(s.Point); ok {
		return fmt.Sprintf("a workload has mounted it inside volume %q of its pod", v.Name)
	}
	if top, ok := table.Top(s.Point); !ok || top.ID != s.Top.MountInfoID {
		return "another mount hides the place: no path leads to it until that goes"
	}
	return ""
}

// addSurplus finds the topmost mounts that may go: each equals the one beneath it, and nothing but the next lies on either.
func (s *Stack) addSurplus(ns mountns.Namespace, layers []mountinfo.Mount, on, peers map[int]int) {
	for i, m := range layers[:len(layers)-1] {
		below := layers[i+1]
		showsSame := m.Major == below.Major && m.Minor == below.Minor && m.Root == below.Root && m.FSType == below.FSType && m.Source == below.Source
		inSameWay := m.Options == below.Options && (m.Shared == 0) == (below.Shared == 0) && m.Master == below.Master && m.Unbindable == below.Unbindable
		switch {
		case i == 0 && on[m.ID] > 0, on[below.ID] > 1:
			s.Kept = "another mount lies on one of them"
		case m.Deleted():
			s.Kept = "its directory was deleted"
		case spreads(below.Shared, peers):
			s.Kept = "an unmount would spread to the other mounts of its peer group, and could take the last one away, too"
		case !showsSame, !inSameWay:
			s.Kept = "it differs from the mount beneath it in device, directory, options or propagation"
		}
		if s.Kept != "" {
			return
		}
		s.Surplus++
		s.surplus = append(s.surplus, mountns.Mount{Mount: m, Namespace: ns})
	}
}

// Judge decides about the evidence. podOf gives a pod by its UID, nil if it is not known; podOf itself may be nil.
func (e *Evidence) Judge(l *kubelet.Layout, podOf func(uid string) *corev1.Pod) (sum mountstate.Survey) {
	sum.Evidence = func() any { return e }
	sum.Coverage.Mounts = e.Mounts
	for _, s := range e.Stacks {
		sum.Findings = append(sum.Findings, s.stackFault(l, podOf, e.limitFact()))
	}
	if e.More > 0 {
		sum.Unknown.AddSkipped(fmt.Sprintf("%d places at which mounts lie on each other, beyond the %d largest", e.More, maxStacks))
	}
	if e.Doubt == "" {
		for _, s := range e.Staged {
			sum.Findings = append(sum.Findings, s.stagedFault())
			sum.LeftOver = append(sum.LeftOver, s.Top.Point)
		}
	}
	if e.Most > 0 && e.Mounts >= e.Most/100*nearLimit {
		f := fault.Finding{Code: fault.StackedMounts, Evidence: []string{e.limitFact()}, Details: fault.Details{
			Place: fault.PlaceMountLimit, Path: mountMaxFile, Layers: e.Mounts,
			Refusal: fault.Refuse(fault.NotProven, "the program that makes so many mounts has to be found and repaired; then fs.mount-max can be raised"),
		}}
		for _, s := range e.Stacks[:min(len(e.Stacks), maxPlacesShown)] {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%d mounts lie on each other at %q", s.Layers, s.Point))
		}
		sum.Findings = append(sum.Findings, f)
	}
	return sum
}

// limitFact says how many mounts there are, and may be.
func (e *Evidence) limitFact() string {
	text := fmt.Sprintf("the kubelet's mount namespace has %d mounts", e.Mounts)
	if e.Most > 0 {
		text += fmt.Sprintf(", and may have %d (fs.mount-max)", e.Most)
	}
	return text
}

// mountMaxFile is the file with the limit.
const mountMaxFile = "/proc/sys/fs/mount-max"

// maxPlacesShown bounds how many places a sentence names.
const maxPlacesShown = 5

// stackFault is the fault.
func (s *Stack) stackFault(l *kubelet.Layout, podOf func(uid string) *corev1.Pod, limit string) fault.Finding {
	f := fault.Finding{
		Code: fault.StackedMounts, Mount: s.Top, Holder: s.maker(l),
		Details: fault.Details{Place: fault.PlaceMounts, Path: s.Point, Layers: s.Layers, Driver: s.Driver},
	}
	v, ok := l.ParseVolume(s.Point)
	if inside, is := l.ParseInsideVolume(s.Point); is && !ok {
		v, ok = inside, true
	}
	if bind, is := l.ParseSubPath(s.Point); is && !ok {
		v, ok = kubelet.Volume{PodUID: bind.PodUID, Name: bind.Volume}, true
		f.Container = bind.Container
	}
	if ok {
		f.Pod, f.Volume = fault.Pod{UID: v.PodUID}, v.Name
		if podOf != nil {
			if pod := podOf(v.PodUID); pod != nil {
				f.Pod, f.Details.Workload = podinfo.PodOf(pod), kubelet.WorkloadOf(pod)
			}
		}
	}
	f.Evidence = []string{fmt.Sprintf("mountinfo: %d mounts lie on each other at %q, and the topmost %d are of the same thing: root %q, type %q from %q",
		s.Layers, s.Point, s.Alike, s.Top.Root, s.Top.FSType, s.Source)}
	if f.Holder != "" {
		f.Evidence = append(f.Evidence, "it is mounted by "+f.Holder)
	}
	if s.Surplus > 0 {
		f.Details.Repair = fault.Unmount
		f.Evidence = append(f.Evidence, fmt.Sprintf("the topmost %d equal the one beneath each, and nothing else lies on them", s.Surplus))
	} else {
		f.Details.Refusal = fault.Refuse(fault.NotProven, "the topmost mount stays: "+s.Kept)
	}
	f.Evidence = append(f.Evidence, limit)
	return f
}

// maker is the driver or the plugin that mounts at the place; empty if none is known.
func (s *Stack) maker(l *kubelet.Layout) string {
	if s.Driver != "" {
		return fmt.Sprintf("CSI driver %q", s.Driver)
	}
	if v, ok := l.ParseVolume(s.Point); ok {
		return "volume plugin " + v.Plugin
	}
	if below, ok := mountinfo.Below(l.PluginsDir(), s.Point); ok && below != "" {
		dir, _, _ := strings.Cut(below, "/")
		return fmt.Sprintf("the driver of directory %q", l.PluginsDir()+"/"+dir)
	}
	return ""
}
