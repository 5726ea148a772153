// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

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

// lookupOld is lookup for such kernels, one entry after another. Nothing is opened but with O_PATH: a container may put a
// device there, and to open some, as a watchdog, does something.
func (v volume) lookupOld(name string) (*sys.FD, error) {
	table, err := mountns.Table(0)
	if err != nil {
		return nil, err
	}
	if !localTree(table, v.path) {
		return nil, mountns.ErrMayBlock
	}
	done, rest := "/", name // done is below v.dir and has no link in it
	for range maxSteps {
		if rest == "" {
			return sys.LookupIn(v.dir, done)
		}
		if done, rest, err = v.stepOld(done, rest); err != nil {
			return nil, err
		}
	}
	return nil, sys.ELOOP
}

// stepOld goes from done into the first entry of rest, or to where that leads if it is a link. EXDEV: out of the volume.
func (v volume) stepOld(done, rest string) (string, string, error) {
	step, rest, _ := strings.Cut(rest, "/")
	switch {
	case step == ".." && done == "/":
		return "", "", sys.EXDEV
	case step == "" || step == "." || step == "..":
		return path.Join(done, step), rest, nil
	}
	at, err := sys.LookupIn(v.dir, done)
	if err != nil {
		return "", "", err
	}
	defer at.Close()
	target, err := linkAt(at, step)
	if errors.Is(err, sys.EINVAL) { // no link
		return path.Join(done, step), rest, nil
	}
	if err == nil {
		target, err = v.within(target)
	}
	if strings.HasPrefix(target, "/") {
		done = "/"
	}
	return done, target + "/" + rest, err
}

// localTree tells whether dir, and all that is mounted below it, lies on local file systems.
func localTree(table *mountinfo.Table, dir string) bool {
	on, ok := table.On(dir)
	return ok && local(on.FSType) && !slices.ContainsFunc(table.Under(dir), func(m mountinfo.Mount) bool { return !local(m.FSType) })
}
