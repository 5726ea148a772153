// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// uses are the mounts that show the directories of some pods to be in use.
type uses map[string]*use // by UID of the pods, all of which are in it

// use is the first mounts that were found of one pod, and how many there are.
type use struct {
	first []Mounted
	all   int
}

func (u uses) note(uid string, m *mountns.Mount, why string) {
	of := u[uid]
	if of == nil {
		return
	}
	if of.all++; len(of.first) < maxTold {
		of.first = append(of.first, Mounted{m.Namespace.Inode, m.Point, m.Root, m.FSType, why})
	}
}

// mounted finds, in every mount namespace of the machine, the mounts that show the directories of these pods to be in
// use. A path means something else in each namespace; so a mount is placed by the directory of the file system that it
// covers, or that it shows, and hidden mounts count as others do. Nothing is kept of all other mounts.
func (l *look) mounted(uids []string) (uses, mountns.Survey, error) {
	scanner := l.Scanner
	if scanner == nil {
		scanner = mountns.NewScanner()
	}
	found := uses{}
	for _, uid := range uids {
		found[uid] = &use{}
	}
	above := parents{}
	room := maxParents
	survey, err := scanner.Each(func(b *mountns.Brief) bool { return b.Major == l.base.major && b.Minor == l.base.minor }, func(m *mountns.Mount) {
		if uid := l.shown(m); uid != "" {
			found.note(uid, m, "it shows what is in the directory of the pod")
		}
		if l.leads(m, found) {
			if room -= len(m.Root) + len(m.Point); room > 0 {
				above.add(m)
			}
		}
	})
	if room <= 0 {
		survey.Skipped = append(survey.Skipped, fmt.Sprintf("what is mounted on mounts that show %q, beyond the first", l.base.root))
	}
	if err == nil && len(above) > 0 {
		var again mountns.Survey
		again, err = scanner.Each(func(b *mountns.Brief) bool {
			in := above[placeOf(b.Namespace)]
			return in != nil && in[b.Parent()] != nil
		}, func(m *mountns.Mount) {
			if uid := l.covered(m, above[placeOf(m.Namespace)][m.Parent]); uid != "" {
				found.note(uid, m, "it is mounted in the directory of the pod")
			}
		})
		if len(survey.Skipped) == 0 {
			survey.Skipped = again.Skipped
		}
	}
	if err != nil {
		return nil, survey, err
	}
	// The kubelet's own table, by its paths: what the other way found is found again.
	for _, m := range l.table.Mounts() {
		of := found[first(l.node.PodsDir(), m.Point)]
		if of != nil && !slices.ContainsFunc(of.first, func(f Mounted) bool { return f.Point == m.Point }) {
			found.note(first(l.node.PodsDir(), m.Point), &mountns.Mount{Mount: m, Namespace: l.host},
				"the kubelet's mount namespace has it in the directory of the pod")
		}
	}
	for _, of := range found {
		slices.SortStableFunc(of.first, func(a, b Mounted) int { return cmp.Compare(a.Namespace, b.Namespace) })
	}
	return found, survey, nil
}

// maxParents bounds the room for the texts of parents, in bytes.
const maxParents = 16 << 20

// parents are the mounts on which something may be mounted in the directory of a pod, by namespace and number.
type parents map[place]map[int]*mountns.Mount

// place is a mount namespace: its number, or a process in it where the number may not be read.
type place struct {
	inode uint64
	pid   int
}

func placeOf(ns mountns.Namespace) place {
	if ns.Inode != 0 {
		return place{inode: ns.Inode}
	}
	return place{pid: ns.PID}
}

func (p parents) add(m *mountns.Mount) {
	at := placeOf(m.Namespace)
	if p[at] == nil {
		p[at] = map[int]*mountns.Mount{}
	}
	p[at][m.ID] = m
}

// leads reports whether the directory of one of the pods can be reached by way of the mount.
func (l *look) leads(m *mountns.Mount, pods uses) bool {
	root, _ := mountinfo.Deleted(m.Root)
	return mountinfo.Within(root, l.base.root) || pods[first(l.base.root, root)] != nil
}

// shown is the pod whose directory, or something in it, is the root of the mount.
func (l *look) shown(m *mountns.Mount) string {
	root, _ := mountinfo.Deleted(m.Root)
	return first(l.base.root, root)
}

// covered is the pod in whose directory the mount lies: its parent shows the file system there.
func (l *look) covered(m, parent *mountns.Mount) string {
	if parent == nil || !mountinfo.Within(parent.Point, m.Point) {
		return ""
	}
	root, _ := mountinfo.Deleted(parent.Root)
	return first(l.base.root, within(parent.Point, root, m.Point))
}

// first is the first name of a path below dir; empty if it is not below.
func first(dir, name string) string {
	if !mountinfo.Within(dir, name) {
		return ""
	}
	uid, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, dir), "/"), "/")
	return uid
}
