// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// Verdict says what is known about a bind.
type Verdict string

// Verdicts.
const (
	// Alive: the source is there, or nothing says that it is not.
	Alive Verdict = "Alive"
	// Stale: no container can be started with this bind, or not with what the subPath names now.
	Stale Verdict = "Stale"
	// SourceGone: the source was deleted, and the volume has no such name any more. Without the bind the kubelet would
	// put an empty directory in its place.
	SourceGone Verdict = "SourceGone"
	// Unproven: the kernel says deleted, but it cannot be proven that this is so.
	Unproven Verdict = "Unproven"
)

// judge decides about the mount st that is at the place of a bind, given how it compares with what the subPath names
// now.
func judge(st mount.State, now relation) (Verdict, string) {
	switch {
	case st.Deleted && now == emptied:
		return SourceGone, "the source was deleted, and the volume has no entry of that name any more"
	case st.Deleted && st.Gone:
		return Stale, "the root of the mount is deleted: its link count is 0"
	case st.Deleted && local(st.FSType):
		return Stale, fmt.Sprintf("the name of the mount's root is deleted; the file has %d other links, but the kernel refuses to bind "+
			"a name that is gone", st.Nlink)
	case st.Deleted:
		return Unproven, fmt.Sprintf("the kernel marks the root of the mount as deleted, but its link count is %d: a file system of "+
			"type %q may have forgotten the name and still have the file", st.Nlink, st.FSType)
	case now == another:
		return Stale, "the subPath names another file now: the source was moved away and made anew"
	}
	return Alive, "the source is alive"
}

// relation is how a bind compares with what its subPath names now.
type relation int

const (
	unknown relation = iota
	same
	another
	absent
	emptied // absent, from a volume that the kubelet has written anew
)

// local tells whether a file system answers from this machine, and numbers its files for good.
func local(fsType string) bool {
	return slices.Contains([]string{"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs"}, fsType)
}

// compare looks at what the subPath names now. It is called inside the kubelet's namespace, whose table it is given, and
// only looks into volumes that the kubelet itself makes, where nothing but local file systems has to answer.
func compare(n *kubelet.Node, pod *corev1.Pod, w Want, st mount.State, table *mountinfo.Table) relation {
	dir := n.VolumeDir(string(pod.UID), plugin(w.Volume), w.Volume.Name)
	if dir == "" || w.Mount.SubPath == "" || !local(st.FSType) || !localTree(table, dir) {
		return unknown
	}
	volume, err := os.OpenRoot(dir)
	if err != nil {
		return unknown
	}
	defer volume.Close()
	bound, err := os.Lstat(st.Point)
	if err != nil {
		return unknown
	}
	now, err := lookup(volume, w.Mount.SubPath)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absence(volume, w.Volume)
	case err != nil:
		return unknown
	}
	// The bind may have been replaced while we looked.
	if again, err := mount.Inspect(st.Point); err != nil || !again.Same(st.ID) {
		return unknown
	}
	if os.SameFile(bound, now) {
		return same
	}
	return another
}

// localTree tells whether dir, and all that is mounted below it, lies on local file systems.
func localTree(table *mountinfo.Table, dir string) bool {
	on, ok := table.On(dir)
	return ok && local(on.FSType) && !slices.ContainsFunc(table.Under(dir), func(m mountinfo.Mount) bool { return !local(m.FSType) })
}

// lookup follows the links of the volume, but none that leads out of it. It looks again where an entry vanishes, as
// the kubelet replaces a volume's content while it is in use.
func lookup(volume *os.Root, subPath string) (info fs.FileInfo, err error) {
	for range 3 {
		info, err = volume.Stat(subPath)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return info, err
}

// absence tells a volume that the kubelet has written anew without the entry from one that is not there or is the
// containers' own: in an emptyDir it is for them to say what exists.
func absence(volume *os.Root, v corev1.Volume) relation {
	if v.EmptyDir != nil {
		return absent
	}
	if _, err := volume.Stat("..data"); err != nil {
		return absent
	}
	return emptied
}
