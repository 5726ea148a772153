// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
)

const csiPlugin = "kubernetes.io~csi"

// readRecord reads the record of the volume whose directory is called dir.
func readRecord(file *sys.FD, dir string) (*kubelet.VolumeRecord, error) {
	r, err := kubelet.ReadVolumeRecord(file)
	if err == nil && (r.PersistentVolume == "" || volumeDirectory(r) != dir) {
		return nil, fmt.Errorf("it is that of volume %q", r.PersistentVolume)
	}
	return r, err
}

// volumeDirectory is what the kubelet calls the directory of the volume.
func volumeDirectory(r *kubelet.VolumeRecord) string {
	return strings.ReplaceAll(r.PersistentVolume, "/", "~")
}

// recordNeeded says what speaks against removing a record; empty: nothing.
//
// No kubelet can finish with a volume by an empty one. But if the volume is staged all the same, its directory is the
// last sign that it has to be unstaged. After a reset of the machine nothing is staged.
//
// The kubelet may go on trying to finish with the volume, for which it needs a record with content. It changes nothing in the
// directory while it tries, so that age says nothing about this. Without the record it would fail for as long as its process
// lives, also once the driver is there. A kubelet that tries once may write a record again when it starts, into the same file.
// So the time at which the file was made counts. If it was after the start, the kubelet has mounted the volume itself, and goes
// on trying as any other.
func (n *inspection) recordNeeded(entry Entry, uid string) string {
	if entry.facts.Record == nil {
		name := path.Base(path.Dir(entry.Path))
		if at := n.stagedElsewhere(&kubelet.VolumeRecord{PersistentVolume: name}, uid); at != "" {
			return fmt.Sprintf("the volume is staged at %q, and no other pod has it mounted: no kubelet can finish with it by an empty "+
				"record, so that is for a person to unmount first", at)
		}
		return ""
	}
	if at := n.stagedElsewhere(entry.facts.Record, uid); at != "" {
		return fmt.Sprintf("the volume is staged at %q, and no other pod has it mounted: the kubelet may not have finished with it, "+
			"and needs the record for that", at)
	}
	may := fmt.Sprintf("the kubelet may be waiting for driver %q to finish with the volume, and needs the record for that", entry.facts.Record.Driver)
	switch retry := n.cleanupRetry; {
	case retry.err != nil:
		return fmt.Sprintf("%s (%v): bring the driver back", may, retry.err)
	case !retry.onlyOnce:
		return may + ": bring the driver back; if that is gone for good, remove the record while the kubelet is stopped"
	case entry.facts.Made.IsZero() || !entry.facts.Made.Before(retry.since):
		return may + ": bring the driver back; if that is gone for good, restart the kubelet"
	}
	return ""
}

// stagedElsewhere says where the driver has the volume mounted for all pods; empty: nowhere. It is empty as well if
// other pods have the volume, for then that mount is as it should be.
func (n *inspection) stagedElsewhere(r *kubelet.VolumeRecord, uid string) string {
	for _, m := range n.table.Mounts() {
		below, ok := strings.CutPrefix(m.Point, n.node.PodsDir()+"/")
		of, rest, _ := strings.Cut(below, "/")
		if ok && of != uid && rest == path.Join(volumesDir, csiPlugin, volumeDirectory(r), "mount") {
			return ""
		}
	}
	for _, point := range n.node.StagingPoints(r.Driver, r.Handle, r.PersistentVolume) {
		if len(n.table.All(point)) > 0 {
			return point
		}
	}
	return ""
}
