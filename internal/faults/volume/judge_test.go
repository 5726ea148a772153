// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// alive is the answer of a directory that is well.
func alive(change ...func(*probe.Answer)) probe.Answer {
	a := probe.Answer{State: probe.Alive, Bindable: probe.Yes, Stat: probe.Stat{Minor: 49, Inode: 7, Nlink: 2, Dir: true, Fresh: true}}
	for _, c := range change {
		c(&a)
	}
	return a
}

// staged is a volume that is directory root of a FUSE file system, of which the driver has staged the whole.
func staged(root string, p, g, now probe.Answer) *Volume {
	v := &Volume{Plugin: "kubernetes.io/csi", Name: "pvc-1", Point: "/p", Answer: p}
	v.Mount.Mount = mountinfo.Mount{ID: 2, Minor: 49, Root: root, Point: "/p", FSType: "fuse.x"}
	v.Staging = &Staging{Point: "/g", Answer: g, Mount: mountns.Mount{Mount: mountinfo.Mount{ID: 1, Minor: 49, Root: "/", Point: "/g"}}}
	below, _ := relative("/", rootOf(v.Mount.Mount))
	v.location = stagedLocation{known: true, below: below, answer: now}
	return v
}

func TestVerdictOf(t *testing.T) {
	t.Parallel()
	unlinked := func(a *probe.Answer) { a.Stat.Nlink = 0 }
	unbindable := func(a *probe.Answer) { a.Bindable = probe.No }
	marked := func(a *probe.Answer) { a.Deleted = true }
	untried := func(a *probe.Answer) { a.Bindable = probe.Unknown }
	other := func(a *probe.Answer) { a.Stat.Inode = 8 }
	remembered := func(a *probe.Answer) { a.Stat.Fresh = false }
	state := func(s probe.State) probe.Answer {
		return probe.Answer{State: s, Errno: sys.ENOTCONN, Took: time.Second}
	}
	const gone, cut = fault.DeletedVolumeSource, fault.DisconnectedFUSE
	for name, c := range map[string]struct {
		root      string
		p, g, now probe.Answer
		code      fault.Code
		why       string
		unknown   bool
	}{
		"well":                   {root: "/v", p: alive(), g: alive(), now: alive()},
		"no trial bind":          {root: "/v", p: alive(untried), g: alive(), now: alive()},
		"disconnected":           {root: "/v", p: state(probe.Disconnected), g: alive(), now: alive(), code: cut, why: "is gone"},
		"disconnected, another":  {root: "/v", p: state(probe.Disconnected), g: alive(), now: alive(other), code: cut, why: "connection"},
		"hung":                   {root: "/v", p: state(probe.Hung), g: state(probe.Hung), code: fault.HungMount, why: "for 1s"},
		"hung since long":        {root: "/v", p: probe.Answer{State: probe.Hung}, code: fault.HungMount, why: "still waits"},
		"stale":                  {root: "/v", p: state(probe.Stale), g: alive(), code: fault.StaleFileHandle, why: "does not know"},
		"root is no more":        {root: "/v", p: state(probe.Missing), g: alive(), now: alive(), code: gone, why: "is no more"},
		"marked and refused":     {root: "/v//deleted", p: alive(marked, unbindable), g: alive(), now: alive(), code: gone, why: "lost its name"},
		"marked, can be bound":   {root: "/v//deleted", p: alive(marked), g: alive(), now: alive()},
		"marked, not tried":      {root: "/v//deleted", p: alive(marked, untried), g: alive(), now: alive(), code: gone, why: "lost its name"},
		"refused alone":          {root: "/v", p: alive(unbindable), g: alive(), now: alive(), code: gone, why: "above"},
		"no links left":          {root: "/v", p: alive(unlinked), g: alive(), now: alive(), code: gone, why: "link count is 0"},
		"a server counts none":   {root: "/v", p: alive(unlinked), g: alive(unlinked), now: alive(unlinked)},
		"root is not deleted":    {root: "/", p: alive(unlinked), g: alive(), now: alive()},
		"links of once":          {root: "/v", p: alive(unlinked, remembered), g: alive(), now: alive()},
		"another directory":      {root: "/v", p: alive(), g: alive(), now: alive(other), code: gone, why: "inode 8 by now"},
		"another, remembered":    {root: "/v", p: alive(remembered), g: alive(), now: alive(other)},
		"no such directory":      {root: "/v", p: alive(), g: alive(), now: state(probe.Missing), code: gone, why: "no directory"},
		"the staging path hangs": {root: "/v", p: alive(), g: state(probe.Hung), now: probe.Answer{}},
		"denied":                 {root: "/v", p: state(probe.Denied), unknown: true},
		"another error":          {root: "/v", p: state(probe.Broken), unknown: true},
		"not asked":              {root: "/v", p: state(probe.Unasked), unknown: true},
		"went meanwhile":         {root: "/v", p: state(probe.Vanished), unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, ok := (&look{}).verdictOf(staged(c.root, c.p, c.g, c.now))
			if ok == c.unknown || d.code != c.code || !strings.Contains(d.why, c.why) {
				t.Errorf("%s: %q, known %v; want %s: %q", d.code, d.why, ok, c.code, c.why)
			}
		})
	}
}

func TestJudgeHostPath(t *testing.T) {
	t.Parallel()
	file := func(a *probe.Answer) { a.Stat.Dir = false }
	for name, c := range map[string]struct {
		kind corev1.HostPathType
		now  probe.Answer
		code fault.Code
	}{
		"well":                    {corev1.HostPathDirectory, alive(), ""},
		"a file":                  {corev1.HostPathFile, alive(file), ""},
		"not there":               {corev1.HostPathDirectory, probe.Answer{State: probe.Missing}, fault.MissingBindSource},
		"not there, and made":     {corev1.HostPathDirectoryOrCreate, probe.Answer{State: probe.Missing}, ""},
		"not there, no type":      {corev1.HostPathUnset, probe.Answer{State: probe.Missing}, ""},
		"a file for a directory":  {corev1.HostPathDirectory, alive(file), fault.SourceTypeMismatch},
		"a directory for a file":  {corev1.HostPathFile, alive(), fault.SourceTypeMismatch},
		"a directory, no type":    {corev1.HostPathUnset, alive(), ""},
		"it hangs below the root": {corev1.HostPathUnset, probe.Answer{State: probe.Hung}, fault.HungMount},
	} {
		v := &Volume{Plugin: HostPathPlugin, Point: "/m/x", location: stagedLocation{answer: c.now}}
		v.spec.HostPath = &corev1.HostPathVolumeSource{Path: "/m/x", Type: &c.kind}
		if d := v.judgeHostPath(); d.code != c.code {
			t.Errorf("%s: %s (%s), want %q", name, d.code, d.why, c.code)
		}
	}
}

// TestHolds tells the directories of two volumes apart.
func TestHolds(t *testing.T) {
	t.Parallel()
	v := staged("/csi/vol1//deleted", alive(), alive(), alive())
	v.location.disk, v.location.hidden = device{254, 0}, "/k/g/csi/vol1"
	for name, c := range map[string]struct {
		m   mountinfo.Mount
		sub string
		ok  bool
	}{
		"the directory":           {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse.x"}, "", true},
		"marked":                  {mountinfo.Mount{Minor: 49, Root: "/csi/vol1//deleted", FSType: "fuse.x"}, "", true},
		"in it":                   {mountinfo.Mount{Minor: 49, Root: "/csi/vol1/a/b", FSType: "fuse.x"}, "a/b", true},
		"before it was remounted": {mountinfo.Mount{Minor: 48, Root: "/csi/vol1", FSType: "fuse.x"}, "", true},
		"type without its rest":   {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse"}, "", true},
		"of the disk below":       {mountinfo.Mount{Major: 254, Root: "/k/g/csi/vol1/a", FSType: "ext4"}, "a", true},
		"elsewhere on that disk":  {mountinfo.Mount{Major: 254, Root: "/k/g/csi", FSType: "ext4"}, "", false},
		"name begins alike":       {mountinfo.Mount{Minor: 49, Root: "/csi/vol10", FSType: "fuse.x"}, "", false},
		"another type":            {mountinfo.Mount{Minor: 49, Root: "/csi/vol1", FSType: "fuse.y"}, "", false},
		"above it":                {mountinfo.Mount{Minor: 49, Root: "/csi", FSType: "fuse.x"}, "", false},
		"a name of its own":       {mountinfo.Mount{Minor: 49, Root: "mnt:[1]", FSType: "fuse.x"}, "", false},
	} {
		if sub, ok := v.holds(c.m); sub != c.sub || ok != c.ok {
			t.Errorf("%s: %q, %v, want %q, %v", name, sub, ok, c.sub, c.ok)
		}
	}
}

func TestSameMount(t *testing.T) {
	t.Parallel()
	m := fault.Mount{ID: 5, MountInfoID: 1, ParentID: 2, Namespace: 3, Device: "0:49", Root: "/", Point: "/p"}
	for name, c := range map[string]struct {
		change func(*fault.Mount)
		want   bool
	}{
		"the same":                  {func(*fault.Mount) {}, true},
		"another number":            {func(m *fault.Mount) { m.ID = 6 }, false},
		"moved":                     {func(m *fault.Mount) { m.ParentID = 9 }, true},
		"no number":                 {func(m *fault.Mount) { m.ID = 0 }, true},
		"no number, another parent": {func(m *fault.Mount) { m.ID, m.ParentID = 0, 9 }, false},
		"no number, another root":   {func(m *fault.Mount) { m.ID, m.Root = 0, "/x" }, false},
		"another namespace":         {func(m *fault.Mount) { m.Namespace = 4 }, false},
	} {
		other := m
		c.change(&other)
		if got := sameMount(m, other); got != c.want || sameMount(other, m) != got {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
