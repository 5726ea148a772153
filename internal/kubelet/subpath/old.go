// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// compareOld is for kernels without openat2 (before 5.6): nothing keeps a lookup on one mount there, so the table has to
// say that there are none but local ones.
func (v volume) compareOld(name string, st mount.State) comparison {
	table, err := mountns.Table(0)
	if err != nil || !localTree(table, v.path) {
		return comparison{}
	}
	root, err := os.OpenRoot(v.path)
	if err != nil {
		return comparison{}
	}
	defer root.Close()
	bound, err := os.Lstat(st.Point)
	if err != nil {
		return comparison{}
	}
	var now fs.FileInfo
	for range tries {
		if now, err = root.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return v.absence(name)
	case err != nil:
		return comparison{}
	}
	// The bind may have been replaced while we looked.
	if again, err := mount.Inspect(st.Point); err != nil || !again.Same(st.ID) {
		return comparison{}
	}
	if os.SameFile(bound, now) {
		return comparison{relation: same}
	}
	return comparison{relation: another}
}

// lookupOld is lookup for such kernels. It opens files and directories alone, which a container may replace by something
// that waits, so without waiting.
func (v volume) lookupOld(name string) (*sys.FD, error) {
	table, err := mountns.Table(0)
	if err != nil {
		return nil, err
	}
	if !localTree(table, v.path) {
		return nil, mountns.ErrMayBlock
	}
	root, err := os.OpenRoot(v.path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|sys.OpenNonblock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sys.OpenProcPath(sys.ThreadProc("fd/" + strconv.Itoa(int(f.Fd()))))
}

// localTree tells whether dir, and all that is mounted below it, lies on local file systems.
func localTree(table *mountinfo.Table, dir string) bool {
	on, ok := table.On(dir)
	return ok && local(on.FSType) && !slices.ContainsFunc(table.Under(dir), func(m mountinfo.Mount) bool { return !local(m.FSType) })
}
