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

// DataLink is the link to the content of a volume of the atomic writer, a directory beside the link. The kubelet makes both when it sets the volume up,
// also if that is empty. Later it puts a new link in the place of the old one (kubernetes/pkg/volume/util/atomic_writer.go).
const DataLink = "..data"

// CheckContent reports as an error why the volume at a point does not have the content of the kubelet's atomic writer. It is called inside the
// kubelet's namespace, whose mount table is given, and does not call a file system that may hang.
func CheckContent(table *mountinfo.Table, point string) error {
	dir, err := mountns.Lookup(0, point)
	if err != nil {
		return fmt.Errorf("open %q: %w", point, err)
	}
	defer dir.Close()
	m, _, err := mountOf(table, dir)
	if err == nil && m.Point != "/" && mountns.MayHang(m.FSType) {
		err = mayNotAnswer(m)
	}
	if err != nil {
		return fmt.Errorf("look into %q: %w", point, err)
	}
	link := path.Join(point, DataLink)
	if _, err := dir.ReadlinkAt(DataLink); err != nil {
		return fmt.Errorf("read link %q: %w", link, err)
	}
	content, err := sys.LookupBeneath(dir, DataLink)
	if err != nil {
		return fmt.Errorf("follow link %q: %w", link, err)
	}
	content.Close()
	return nil
}
