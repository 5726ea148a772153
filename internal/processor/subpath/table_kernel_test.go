// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/repair"
)

// table is what is mounted in a namespace, by numbers that the kernel never uses again where it has them, and else by
// those of mountinfo.
type table map[uint64]row

type row struct {
	Parent uint64
	Point  string
}

// namespaceOf is the kernel's number for the mount namespace of a process; 0 is the caller's, as is PID 0.
func namespaceOf(t *testing.T, pid int) uint64 {
	t.Helper()
	if pid == 0 {
		return 0
	}
	ns, err := mountns.Of(pid)
	must(t, err)
	return ns.ID
}

func unique(pid int) bool {
	return sys.HasStatmount.Probe() == nil && (pid == 0 || sys.HasNamespaceID.Probe() == nil)
}

// tableOf is the mount table of a process; 0 is the caller.
func tableOf(t *testing.T, pid int) table {
	t.Helper()
	all := table{}
	if !unique(pid) {
		mounts, err := mountns.Table(pid)
		must(t, err)
		for _, m := range mounts.Mounts() {
			all[uint64(m.ID)] = row{uint64(m.Parent), m.Point}
		}
		return all
	}
	namespace := namespaceOf(t, pid)
	ids, err := sys.ListAllMounts(nil, namespace)
	must(t, err)
	var m sys.MountStat
	for _, id := range ids {
		must(t, m.Load(sys.MountRef{Namespace: namespace, Mount: id}, sys.StatmountBasic|sys.StatmountPoint))
		all[id] = row{m.Parent(), string(m.Point())}
	}
	return all
}

// mountKey names a mount of the caller's namespace among those of one round. Its number alone does where the kernel never
// uses it again. On other kernels the rest distinguishes it from one that had its number before: the mounts of a rival are
// read-only, and a bind of the recoverer has another root than the stale one.
type mountKey struct {
	ID       uint64
	ReadOnly bool
	Root     string // empty for one that is read-only: rivals rename roots
}

// mountKeys lists all mounts of the caller's namespace.
func mountKeys() (all []mountKey, err error) {
	if unique(0) {
		ids, err := sys.ListAllMounts(nil, 0)
		for _, id := range ids {
			all = append(all, mountKey{ID: id})
		}
		return all, err
	}
	mounts, err := mountns.Table(0)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts.Mounts() {
		all = append(all, keyOf(mount.ID{MountInfoID: m.ID, Root: m.Root}, strings.HasPrefix(m.Options, "ro")))
	}
	return all, nil
}

func keyOf(id mount.ID, readOnly bool) mountKey {
	switch {
	case unique(0):
		return mountKey{ID: id.UniqueID}
	case readOnly:
		return mountKey{ID: uint64(id.MountInfoID), ReadOnly: true}
	}
	return mountKey{ID: uint64(id.MountInfoID), Root: id.Root}
}

// numberOf is the number of a mount in a plan, as mountKey has it.
func numberOf(m *fault.Mount) uint64 {
	if unique(0) {
		return m.ID
	}
	return uint64(m.MountInfoID)
}

// numberKind asks for that number of the mount of a descriptor.
func numberKind() uint32 {
	if unique(0) {
		return sys.StatUniqueID
	}
	return sys.StatMountID
}

// mountPlace says where a mount is and what it shows.
type mountPlace struct {
	Parent      uint64
	Point, Root string
	ReadOnly    bool
}

// load finds the mount, unless it is gone.
func (k mountKey) load() (mountPlace, error) {
	if unique(0) {
		var m sys.MountStat
		err := m.Load(sys.MountRef{Mount: k.ID}, sys.StatmountBasic|sys.StatmountPoint|sys.StatmountRoot)
		return mountPlace{m.Parent(), string(m.Point()), string(m.Root()), err == nil && m.Attr().Has(sys.AttrReadOnly)}, err
	}
	mounts, err := mountns.Table(0)
	if err != nil {
		return mountPlace{}, err
	}
	m, ok := mounts.ByID(int(k.ID))
	if !ok {
		return mountPlace{}, mount.ErrNotMounted
	}
	return mountPlace{uint64(m.Parent), m.Point, m.Root, k.ReadOnly}, nil
}

// without is what is in a and not in b.
func without[K comparable](a, b []K) (left []K) {
	in := make(map[K]bool, len(b))
	for _, id := range b {
		in[id] = true
	}
	for _, id := range a {
		if !in[id] {
			left = append(left, id)
		}
	}
	return left
}

// healing is what a repair does at one point.
type healing struct {
	point string
	// source is what the subPath names now; where that is nothing, nothing is mounted in the place of the stale bind.
	source string
}

// repairs are those of the plan's unmounts, of subPaths that all name the key of one volume.
func (w *repairScene) repairs(p repair.Part, volume string) (all []healing) {
	for _, a := range p.Actions {
		if a.Kind == fault.Unmount {
			all = append(all, healing{a.Target, filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, volume), "key")})
		}
	}
	return all
}

// holds checks that between two tables of the process pid the one mount at each of the points is gone, that one new mount
// is there in its place, on what the old one was on, of the file that the subPath names now, and that nothing else has
// changed.
func holds(t *testing.T, pid int, before table, repaired ...healing) {
	t.Helper()
	before, after := maps.Clone(before), tableOf(t, pid)
	for _, r := range repaired {
		old, now := before.at(r.point), after.at(r.point)
		if len(old) != 1 {
			t.Fatalf("there were %d mounts at %q, want one", len(old), r.point)
		}
		if unique(pid) && slices.Contains(now, old[0]) {
			t.Errorf("mount %d is still there: %+v", old[0], after[old[0]])
		}
		if wanted := map[bool]int{true: 0, false: 1}[r.source == ""]; len(now) != wanted {
			t.Errorf("mounts %v are at %q now, want %d", now, r.point, wanted)
		}
		for _, id := range now {
			if after[id].Parent != before[old[0]].Parent {
				t.Errorf("mount %d at %q is on %d, want it on %d", id, r.point, after[id].Parent, before[old[0]].Parent)
			}
			shows(t, pid, r)
			delete(after, id)
		}
		delete(before, old[0])
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("mounts of process %d changed (-before +after):\n%s", pid, diff)
	}
}

// at lists the mounts at a point.
func (all table) at(point string) (ids []uint64) {
	for id, m := range all {
		if m.Point == point {
			ids = append(ids, id)
		}
	}
	return ids
}

// shows checks that the process sees at the point the very file that the subPath names.
func shows(t *testing.T, pid int, r healing) {
	t.Helper()
	root := ""
	if pid != 0 {
		root = fmt.Sprintf("/proc/%d/root", pid)
	}
	source, err := os.Stat(r.source)
	must(t, err)
	if now, err := os.Stat(root + r.point); err != nil || !os.SameFile(now, source) {
		t.Errorf("at %q: %v, %v, want the file %q", r.point, now, err, r.source)
	}
}

// tables are those of the kubelet's namespace and the container's.
type tables struct{ kubelet, container table }

func (s *attackedPods) tables(t *testing.T) tables {
	t.Helper()
	return tables{tableOf(t, 0), tableOf(t, s.container.PID)}
}

// holds checks that nothing has changed in the kubelet's namespace but what was repaired, and nothing in the
// container's.
func (s *attackedPods) holds(t *testing.T, before tables, repaired ...healing) {
	t.Helper()
	holds(t, 0, before.kubelet, repaired...)
	holds(t, s.container.PID, before.container)
}
