// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

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
