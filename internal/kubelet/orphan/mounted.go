// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"cmp"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// mounted finds, in every mount namespace of the machine, the mounts that show the directories of these pods to be in
// use. A path means something else in each namespace; so a mount is placed by the directory of the file system that it
// covers, or that it shows, and hidden mounts count as others do.
func (l *look) mounted(uids []string) (map[string][]Mounted, mountns.Survey, error) {
	scanner := l.Scanner
	if scanner == nil {
		scanner = mountns.NewScanner()
	}
	mounts, survey, err := scanner.OnDevices(func(uint32, uint32) bool { return true })
	if err != nil {
		return nil, survey, err
	}
	found := map[string][]Mounted{}
	note := func(uid string, m mountns.Mount, why string) {
		if slices.Contains(uids, uid) {
			found[uid] = append(found[uid], Mounted{m.Namespace.Inode, m.Point, m.Root, m.FSType, why})
		}
	}
	parents := index(mounts)
	for _, m := range mounts {
		if uid := l.shown(m); uid != "" {
			note(uid, m, "it shows what is in the directory of the pod")
		}
		if uid := l.covered(m, parents[key{m.Namespace, m.Parent}]); uid != "" {
			note(uid, m, "it is mounted in the directory of the pod")
		}
	}
	// The kubelet's own table, by its paths: what the other way found is found again.
	for _, m := range l.table.Mounts() {
		uid := first(l.node.PodsDir(), m.Point)
		if uid != "" && !slices.ContainsFunc(found[uid], func(f Mounted) bool { return f.Point == m.Point }) {
			note(uid, mountns.Mount{Mount: m, Namespace: l.host}, "the kubelet's mount namespace has it in the directory of the pod")
		}
	}
	for _, all := range found {
		slices.SortStableFunc(all, func(a, b Mounted) int { return cmp.Compare(a.Namespace, b.Namespace) })
	}
	return found, survey, nil
}

// key finds a mount in its namespace.
type key struct {
	ns mountns.Namespace
	id int
}

func index(mounts []mountns.Mount) map[key]*mountns.Mount {
	all := make(map[key]*mountns.Mount, len(mounts))
	for i := range mounts {
		all[key{mounts[i].Namespace, mounts[i].ID}] = &mounts[i]
	}
	return all
}

func (g ground) has(m mountns.Mount) bool { return m.Major == g.major && m.Minor == g.minor }

// shown is the pod whose directory, or something in it, is the root of the mount.
func (l *look) shown(m mountns.Mount) string {
	if !l.base.has(m) {
		return ""
	}
	root, _ := mountinfo.Deleted(m.Root)
	return first(l.base.root, root)
}

// covered is the pod in whose directory the mount lies: its parent shows the file system there.
func (l *look) covered(m mountns.Mount, parent *mountns.Mount) string {
	if parent == nil || !l.base.has(*parent) || !mountinfo.Within(parent.Point, m.Point) {
		return ""
	}
	root, _ := mountinfo.Deleted(parent.Root)
	return first(l.base.root, within(parent.Point, root, m.Point))
}

// first is the first name of a path below dir; empty where it is not below.
func first(dir, name string) string {
	if !mountinfo.Within(dir, name) {
		return ""
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, dir), "/"), "/")
	return uid
}
