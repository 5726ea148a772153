// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ReadVolumeRecordAt reads the record of the mount at point. It is called inside the kubelet's namespace, whose mount
// table is given, and does not call a file system that may hang.
func ReadVolumeRecordAt(table *mountinfo.Table, point string) (*VolumeRecord, error) {
	name := VolumeRecordPath(point)
	dir, err := mountns.Lookup(0, path.Dir(name))
	if err != nil {
		return nil, fmt.Errorf("open record %q: %w", name, err)
	}
	defer dir.Close()
	r, err := ReadVolumeRecordIn(table, dir)
	if err != nil {
		return nil, fmt.Errorf("read record %q: %w", name, err)
	}
	return r, nil
}

// ReadVolumeRecordIn reads the record that lies in dir. The root of a mount may be of any file system, and its
// entries must not be read. The type is checked on the open file before it is read: a pipe or a device may never answer.
func ReadVolumeRecordIn(table *mountinfo.Table, dir *sys.FD) (*VolumeRecord, error) {
	m, isRoot, err := mountOf(table, dir)
	switch {
	case err != nil:
		return nil, err
	case isRoot, m.Point != "/" && mountns.MayHang(m.FSType): // the kernel may have cached the way to it, but not its entries
		return nil, fmt.Errorf("%w: %w", errVolumeRecord, mayNotAnswer(m))
	}
	foreign := fmt.Errorf("%w: it is no file of the kubelet's", errVolumeRecord)
	file, err := sys.OpenEntry(dir, VolumeRecordName)
	switch {
	case errors.Is(err, sys.ELOOP), errors.Is(err, sys.EXDEV):
		return nil, foreign
	case err != nil:
		return nil, err
	}
	defer file.Close()
	if st, err := file.Stat(sys.StatType); err != nil {
		return nil, err
	} else if !st.IsRegular() {
		return nil, foreign
	}
	return ReadVolumeRecord(file)
}

// mayNotAnswer is the error for a directory that is not looked into.
func mayNotAnswer(m mountinfo.Mount) error {
	return fmt.Errorf("its directory is on a file system of type %q, mounted at %q, which may not answer", m.FSType, m.Point)
}

// mountOf is the mount of a table that an open directory lies on. isRoot is whether it is the root of that mount.
func mountOf(table *mountinfo.Table, dir *sys.FD) (m mountinfo.Mount, isRoot bool, err error) {
	stat, err := dir.Stat(sys.StatType | sys.StatMountID)
	if err != nil {
		return m, false, err
	}
	number := int(stat.MountID)
	if !stat.Has(sys.StatMountID) {
		if number, err = dir.FDMountID(); err != nil {
			return m, false, err
		}
	}
	m, ok := table.ByID(number)
	if !ok {
		return m, false, errors.New("its directory was mounted just now")
	}
	return m, stat.MountRoot, nil
}
