// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Feature is something that only some kernels can do. Its probe uses it: distributions carry features back to older
// versions.
type Feature struct {
	Name   string // "statmount"
	Kernel string // first version of the mainline kernel that has it, "6.8"
	// Without is the program's way without the feature, for people.
	Without string

	probe func() error

	mu    sync.Mutex
	known bool
	err   error
}

// UnsupportedError reports that the running kernel lacks a feature. It satisfies errors.Is(err, errors.ErrUnsupported).
type UnsupportedError struct {
	Feature, Kernel string
}

// Error names the feature and the kernel that brought it.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s not supported: needs kernel %s", e.Feature, e.Kernel)
}

// Unwrap is errors.ErrUnsupported.
func (e *UnsupportedError) Unwrap() error { return errors.ErrUnsupported }

// ProbeError says why it could not be found out whether the running kernel has
// a feature.
type ProbeError struct {
	Feature string
	Err     error
}

// Error names the feature and the cause.
func (e *ProbeError) Error() string { return "probe " + e.Feature + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *ProbeError) Unwrap() error { return e.Err }

// Probe returns nil if the kernel has the feature and lets this process use it, and an *UnsupportedError if the kernel
// lacks it. It returns a *ProbeError if that is not known, or not permitted. The first two answers are final and kept;
// a refusal is probed again.
func (f *Feature) Probe() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known {
		return f.err
	}
	err := f.probe()
	if errors.Is(err, errors.ErrUnsupported) {
		err = &UnsupportedError{Feature: f.Name, Kernel: f.Kernel}
	} else if err != nil {
		return &ProbeError{Feature: f.Name, Err: err}
	}
	f.known, f.err = true, err
	return err
}

// IsDue reports whether the mainline kernel of a release has the feature.
func (f *Feature) IsDue(release string) bool { return !isOlder(release, f.Kernel) }

// The features that the mount layer uses if it finds them.
var (
	HasMountTrees = &Feature{
		Name: "open_tree and move_mount", Kernel: "5.2", probe: probeMountTrees,
		Without: "volumes are not replaced under running containers, and no bind is tried out",
	}
	hasOpenat2 = &Feature{
		Name: "openat2", Kernel: "5.6", probe: probeOpenat2,
		Without: "paths are looked up step by step",
	}
	HasMountID = &Feature{
		Name: "statx mount id", Kernel: "5.8", probe: probeStatx(StatMountID),
		Without: "the number of a mount is read from /proc/self/fdinfo",
	}
	HasCachedLookup = &Feature{
		Name: "openat2 RESOLVE_CACHED", Kernel: "5.12", probe: probeCachedLookup,
		Without: "the mount table is read first, and a path over a file system that may hang is not looked up",
	}
	HasMountSetattr = &Feature{
		Name: "mount_setattr", Kernel: "5.12", probe: probeMountSetattr,
		Without: "what a mount allows is set while it is attached in a mount namespace that no other process sees",
	}
	HasDiskSequence = &Feature{
		Name: "number of a disk that is never used again", Kernel: "5.15", probe: probeDiskSequence,
		Without: "a disk is known by its RBD image or its loop file; others are not detached",
	}
	HasMemoryRelease = &Feature{
		Name: "process_mrelease", Kernel: "5.15", probe: probeMemoryRelease,
		Without: "fewer file systems that hang are waited for at once",
	}
	HasMoveBeneath = &Feature{
		Name: "move_mount beneath a mount", Kernel: "6.5", probe: probeMoveBeneath,
		Without: "the new mount spreads to its place from a copy of the directory above",
	}
	HasUniqueMountID = &Feature{
		Name: "statx unique mount id", Kernel: "6.8", probe: probeStatx(StatUniqueID),
		Without: "a mount is known by number, parent, device, root and point together",
	}
	HasStatmount = &Feature{
		Name: "statmount and listmount", Kernel: "6.8", probe: probeStatmount,
		Without: "mounts are read from /proc/PID/mountinfo",
	}
	HasNamespaceID = &Feature{
		Name: "statmount in other mount namespaces", Kernel: "6.12", probe: probeNamespaceID,
		Without: "mounts of other namespaces are read from /proc/PID/mountinfo",
	}
	HasNamespaceWalk = &Feature{
		Name: "walk over all mount namespaces", Kernel: "6.12", probe: probeNamespaceWalk,
		Without: "namespaces are found by processes, threads, descriptors and named files; what only a socket keeps is not found",
	}
	HasStatmountSource = &Feature{
		Name: "statmount source and subtype", Kernel: "6.13", probe: probeStatmountSource,
		Without: "mounts that statmount reads are shown without source and subtype, but for the source of a btrfs; those of mountinfo have both",
	}
	HasFUSEServer = &Feature{
		Name: "connection of an open /dev/fuse", Kernel: "6.16", probe: probeFUSEServer,
		Without: "the daemon of a FUSE volume is not named",
	}
)

// Features lists every feature that kubediag makes use of, by age.
func Features() []*Feature {
	return []*Feature{
		HasMountTrees, hasOpenat2, HasMountID, HasCachedLookup, HasMountSetattr, HasDiskSequence, HasMemoryRelease,
		HasMoveBeneath, HasUniqueMountID, HasStatmount, HasNamespaceID, HasNamespaceWalk,
		HasStatmountSource, hasDetachedTarget, HasFUSEServer,
	}
}

// unsupportedError turns the error numbers that mean "never heard of it" for one call
// into errors.ErrUnsupported and passes on every other.
func unsupportedError(err error, numbers ...Errno) error {
	for _, n := range numbers {
		if errors.Is(err, n) {
			return errors.ErrUnsupported
		}
	}
	return err
}

func probeOpenat2() error {
	fd, err := openat2(unix.AT_FDCWD, "/", unix.RESOLVE_NO_SYMLINKS)
	fd.Close()
	return unsupportedError(err, ENOSYS)
}

func probeCachedLookup() error {
	fd, err := LookupCached(nil, "/")
	fd.Close()
	if err == EAGAIN {
		return nil
	}
	return unsupportedError(err, ENOSYS, EINVAL)
}

func probeStatx(mask uint32) func() error {
	return func() error {
		st, err := statx(unix.AT_FDCWD, "/", statxNoSync, mask)
		if err == nil && !st.Has(mask) {
			return errors.ErrUnsupported
		}
		return unsupportedError(err, ENOSYS)
	}
}

func probeStatmount() error {
	st, err := statx(unix.AT_FDCWD, "/", statxNoSync, StatUniqueID)
	if err != nil {
		return unsupportedError(err, ENOSYS)
	}
	if !st.Has(StatUniqueID) {
		return errors.ErrUnsupported
	}
	var m MountStat
	if err := m.Load(MountRef{Mount: st.MountID}, StatmountSuper); err != nil {
		return unsupportedError(err, ENOSYS)
	}
	_, err = Listmount(MountRef{Mount: RootOf}, 0, make([]uint64, 1))
	return unsupportedError(err, ENOSYS)
}

// probeStatmountSource asks for the source of /proc, which always has one.
func probeStatmountSource() error {
	proc, err := Procfs()
	if err != nil {
		return err
	}
	st, err := proc.Stat(StatUniqueID)
	if err != nil {
		return err
	}
	if !st.Has(StatUniqueID) {
		return errors.ErrUnsupported
	}
	var m MountStat
	err = m.Load(MountRef{Mount: st.MountID}, StatmountSource)
	if err == nil && !m.hasFields(StatmountSource) {
		err = errors.ErrUnsupported
	}
	return unsupportedError(err, ENOSYS)
}

func probeNamespaceID() error {
	fd, err := OpenNamespace(ThreadProc("ns/mnt"))
	if err != nil {
		return err
	}
	defer fd.Close()
	info, err := fd.NamespaceInfo()
	if err != nil {
		return unsupportedError(err, ENOTTY)
	}
	_, err = Listmount(MountRef{Namespace: info.ID, Mount: RootOf}, 0, make([]uint64, 1))
	return unsupportedError(err, ENOSYS, unix.E2BIG, EINVAL)
}

func probeNamespaceWalk() error {
	fd, err := OpenNamespace(ThreadProc("ns/mnt"))
	if err != nil {
		return err
	}
	defer fd.Close()
	next, _, err := fd.NextNamespace()
	next.Close()
	if err == ENOENT {
		return nil
	}
	return unsupportedError(err, ENOTTY)
}

func probeMountTrees() error {
	n, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return unsupportedError(err, ENOSYS)
	}
	return unix.Close(n)
}

func probeMountSetattr() error {
	// It requests nothing and does nothing, but a kernel without the call reports that.
	return unsupportedError(unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{}), ENOSYS)
}

func probeMoveBeneath() error {
	// The kernel checks the flag before the descriptors, which are invalid.
	err := unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|moveBeneath)
	if err == EBADF {
		return nil
	}
	return unsupportedError(err, ENOSYS, EINVAL)
}
