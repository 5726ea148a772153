// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// look is one look at the node: what is found out once and asked of often.
type look struct {
	*Inspector
	selection  Selection
	node       *kubelet.Node
	host       mountns.Namespace
	table      *mountinfo.Table           // of the kubelet's namespace
	at         map[string]mountinfo.Mount // by point: the visible mounts below the directories of pods and plugins
	names      map[string]kubelet.PodName // by UID, for people; empty where all pods are known
	onHost     map[device]bool            // the file systems that are seen in the kubelet's namespace
	staged     map[string]*probe.Answer   // by staging path
	namespaces map[place]*otherNamespace  // other mount namespaces
	blind      bool                       // processes may be in them that were not seen
	silent     int                        // how often the runtime has not answered
	copies     map[string]int             // how many there are in each container
	found      []*Copy                    // in other mount namespaces, healthy ones included
	inside     map[place]*mountinfo.Table
	survey     *Survey
}

// device is the number of a file system's device.
type device struct{ major, minor uint32 }

func deviceOf(m mountinfo.Mount) device { return device{m.Major, m.Minor} }

func (d device) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// Inspect looks at the volumes of a selection. It waits for file systems only as long as the prober does.
func (i *Inspector) Inspect(ctx context.Context, s Selection) (*Survey, error) {
	began := time.Now()
	l, err := i.inspect(ctx, s)
	if err == nil {
		err = l.findFates(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("inspect volumes: %w", err)
	}
	l.survey.Coverage.Took = time.Since(began)
	return l.survey, nil
}

// inspect looks for what decides on a repair.
func (i *Inspector) inspect(ctx context.Context, s Selection) (*look, error) {
	l, err := i.begin(ctx, s)
	if err != nil {
		return nil, err
	}
	steps := []func(context.Context) error{
		l.findVolumes, l.findHostPaths, l.askVolumes, l.askSources, l.askTwice, l.judge, l.askBinds, l.findSources, l.findBinds, l.findCopies,
		l.askCopies, l.conclude,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (i *Inspector) begin(ctx context.Context, s Selection) (*look, error) {
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	host, err := n.Namespace()
	if err != nil {
		return nil, err
	}
	if n.PID == 0 {
		if host.PID, err = sys.OwnPID(); err != nil { // so that a process of ours finds it, too
			return nil, err
		}
	}
	if owned, err := host.Owned(); err == nil { // else looking is all that can be done
		host = owned
	}
	table, err := mountns.Table(host.PID)
	if err != nil {
		return nil, err
	}
	l := &look{
		Inspector: i, selection: s, node: n, host: host, table: table, at: map[string]mountinfo.Mount{}, onHost: map[device]bool{},
		staged: map[string]*probe.Answer{}, namespaces: map[place]*otherNamespace{}, copies: map[string]int{}, inside: map[place]*mountinfo.Table{placeOf(host): table},
		survey: &Survey{Namespace: host.Inode},
	}
	l.survey.Coverage.Mounts = len(table.Mounts())
	l.index()
	for point := range l.at {
		if place, ok := n.ParseVolume(point); ok && l.podOf(place.PodUID) == nil {
			l.names, _ = n.PodNames(ctx) // for people alone
			break
		}
	}
	return l, nil
}

// index finds out which mount is visible at each point below the kubelet's directories: the one that no other lies on at
// the same point. That nothing covers a directory above is for the prober to see, who asks only the mount that is meant.
func (l *look) index() {
	covered := map[int]bool{}
	for _, m := range l.table.Mounts() {
		if parent, ok := l.table.ByID(m.Parent); ok && parent.Point == m.Point {
			covered[parent.ID] = true
		}
	}
	for _, m := range l.table.Mounts() {
		if !covered[m.ID] {
			l.onHost[deviceOf(m)] = true
		}
	}
	for _, dir := range []string{l.node.PodsDir(), l.node.PluginsDir()} {
		for _, m := range l.table.Under(dir) {
			if !covered[m.ID] {
				l.at[m.Point] = m
			}
		}
	}
}

// incomplete notes what could not be looked at.
func (l *look) incomplete(format string, args ...any) {
	l.survey.Coverage.Incomplete = append(l.survey.Coverage.Incomplete, fmt.Sprintf(format, args...))
}

// own makes a mount of the kubelet's namespace one that tells its namespace.
func (l *look) own(m mountinfo.Mount) mountns.Mount {
	return mountns.Mount{Mount: m, Namespace: l.host}
}

// findVolumes lists the volumes that are mounted, and reads their records.
func (l *look) findVolumes(ctx context.Context) error {
	return l.node.Do(ctx, func() error {
		for point, m := range l.at {
			place, ok := l.node.ParseVolume(point)
			if !ok || !l.considered(place, m) {
				continue
			}
			v := l.newVolume(place)
			v.Mount = l.own(m)
			l.complete(v)
		}
		slices.SortFunc(l.survey.Volumes, func(a, b *Volume) int {
			return cmp.Or(cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Plugin, b.Plugin), cmp.Compare(a.Name, b.Name))
		})
		return ctx.Err()
	})
}

// considered tells whether a volume is of a kind that can die.
func (l *look) considered(place kubelet.Volume, m mountinfo.Mount) bool {
	return l.selection.has(place.PodUID, place.Name) && (place.Plugin == kubelet.CSI || mountns.MayHang(m.FSType))
}

// has tells whether a volume is to be looked at.
func (s Selection) has(podUID, volume string) bool {
	return (s.PodUID == "" || s.PodUID == podUID) && (s.Volume == "" || s.Volume == volume)
}

// newVolume adds a volume, of which nothing is known yet but its names.
func (l *look) newVolume(place kubelet.Volume) *Volume {
	v := &Volume{
		Pod: fault.Pod{UID: place.PodUID}, Plugin: place.Plugin, Name: place.Name, Point: l.node.VolumePoint(place),
	}
	v.pod = l.podOf(place.PodUID)
	if v.pod != nil {
		v.Pod.Namespace, v.Pod.Name = v.pod.Namespace, v.pod.Name
	} else {
		name := l.names[place.PodUID]
		v.Pod.Namespace, v.Pod.Name = name.Namespace, name.Name
	}
	l.survey.Volumes = append(l.survey.Volumes, v)
	return v
}

// podOf is the pod as it is known; nil where it is not.
func (l *look) podOf(uid string) *corev1.Pod {
	if l.Pods == nil {
		return nil
	}
	return l.Pods.PodByUID(uid)
}

// complete reads what the kubelet has written down about a volume, and finds where the driver has staged it. It is
// called inside the kubelet's namespace.
func (l *look) complete(v *Volume) {
	if stack := l.stack(v.Mount.Mount); len(stack) > 1 {
		v.HiddenMounts = stack[:len(stack)-1]
	}
	if v.Mount.ID != 0 {
		v.nested = len(l.table.Children(v.Mount.ID))
	}
	if v.Plugin != kubelet.CSI {
		v.NoRecordReason = "the kubelet writes down nothing about a volume of plugin " + v.Plugin
		v.NoSourceReason = "a volume of plugin " + v.Plugin + " is mounted for the pod alone, so there is nothing that could take its place"
		return
	}
	record, err := l.readRecord(v.Point)
	if err != nil {
		v.NoRecordReason = err.Error()
		v.NoSourceReason = "which volume it is cannot be told: " + err.Error()
		return
	}
	v.Record = record
	l.findStaging(v)
}

// stack lists the mounts at the point of m that lead up to it, the lowest first.
func (l *look) stack(m mountinfo.Mount) []mountinfo.Mount {
	stack := []mountinfo.Mount{m}
	for len(stack) < len(l.table.Mounts()) {
		below, ok := l.table.ByID(stack[0].Parent)
		if !ok || below.Point != m.Point || m.Point == "" {
			break
		}
		stack = slices.Insert(stack, 0, below)
	}
	return stack
}

// findStaging finds the mount that the driver has made for the whole node: at one of the places where the kubelet has it
// made, with a record beside it that names the same volume.
func (l *look) findStaging(v *Volume) {
	var found []*Staging
	v.NoSourceReason = "the driver has nothing mounted for the whole node at " + strings.Join(l.node.StagingPoints(v.Record.Driver,
		v.Record.Handle, v.Record.PersistentVolume), " or ")
	for _, point := range l.node.StagingPoints(v.Record.Driver, v.Record.Handle, v.Record.PersistentVolume) {
		m, ok := l.at[point]
		if !ok {
			continue
		}
		record, err := l.readRecord(point)
		switch {
		case err != nil:
			v.NoSourceReason = fmt.Sprintf("which volume is mounted at staging path %q cannot be told: %v", point, err)
		case !record.Same(v.Record):
			v.NoSourceReason = fmt.Sprintf("the staging path %q is of %s, and this is %s", point, record, v.Record)
		default:
			found = append(found, &Staging{Point: point, Record: record, Mount: l.own(m)})
		}
	}
	if len(found) == 0 {
		return
	}
	v.Staging, v.NoSourceReason = found[0], ""
	for _, other := range found[1:] {
		if deviceOf(other.Mount.Mount) != deviceOf(v.Staging.Mount.Mount) || other.Mount.Root != v.Staging.Mount.Root {
			v.Staging = nil
			v.NoSourceReason = fmt.Sprintf("%q and %q are both staging paths of this volume, and different directories are mounted there",
				found[0].Point, other.Point)
			return
		}
	}
}

// rootOf is the root of a mount without the kernel's mark.
func rootOf(m mountinfo.Mount) string {
	root, _ := mountinfo.Deleted(m.Root)
	return root
}

// relative is the way from dir to name, without a slash before it.
func relative(dir, name string) (string, bool) {
	if !path.IsAbs(dir) || !path.IsAbs(name) || !mountinfo.Within(dir, name) {
		return "", false
	}
	return strings.Trim(strings.TrimPrefix(name, strings.TrimSuffix(dir, "/")), "/"), true
}

// mountID says which mount is meant.
func mountID(m mountns.Mount) mount.ID {
	return mount.ID{
		Unique: m.Unique, Reused: m.ID, Parent: m.Parent, Major: m.Major, Minor: m.Minor, Root: m.Root, Point: m.Point,
	}
}

// faultMount is the mount as it is put into plans and findings.
func faultMount(m mountns.Mount) fault.Mount {
	if m.ID == 0 {
		return fault.Mount{}
	}
	return fault.Mount{
		ID: m.Unique, MountInfoID: m.ID, ParentID: m.Parent, Namespace: m.Namespace.Inode,
		Device: deviceOf(m.Mount).String(), Root: m.Root, Point: m.Point, FSType: m.FSType,
	}
}
