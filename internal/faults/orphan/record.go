// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

const (
	csiPlugin  = "kubernetes.io~csi"
	recordName = "vol_data.json"
	// maxRecord bounds a record in bytes. The kubelet's have some hundred.
	maxRecord = 16 << 10
)

// record is what the kubelet has noted of a CSI volume.
type record struct {
	driver, handle, name string // name is that of the PersistentVolume, or of the volume in the pod
}

// parseRecord reads a record of the volume whose directory is called dir: one JSON object of strings with what every
// kubelet writes, for this volume and no other.
func parseRecord(text []byte, dir string) (*record, error) {
	if len(text) > maxRecord {
		return nil, fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	var fields map[string]string
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("it cannot be parsed: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its object")
	}
	r := &record{driver: fields["driverName"], handle: fields["volumeHandle"], name: fields["specVolID"]}
	switch {
	case r.driver == "", r.handle == "":
		return nil, errors.New("it names no driver or no volume handle")
	case r.name == "", r.dir() != dir:
		return nil, fmt.Errorf("it is that of volume %q", r.name)
	}
	return r, nil
}

// dir is what the kubelet calls the directory of the volume.
func (r *record) dir() string { return strings.ReplaceAll(r.name, "/", "~") }

// needed says what speaks against removing a record; empty: nothing.
//
// No kubelet can finish with a volume by an empty one. But where the volume is staged all the same, its directory is the last
// sign that somebody has to unstage it, and after a reset of the machine nothing is staged.
func (l *look) needed(e Entry, uid string) string {
	if e.record == nil {
		name := path.Base(path.Dir(e.Path))
		if at := l.staged(&record{name: name}, uid); at != "" {
			return fmt.Sprintf("the volume is staged at %q, and no other pod has it mounted: no kubelet can finish with it by an empty "+
				"record, so that is for a person to unmount first", at)
		}
		return ""
	}
	if at := l.staged(e.record, uid); at != "" {
		return fmt.Sprintf("the volume is staged at %q, and no other pod has it mounted: the kubelet may not have finished with it, "+
			"and needs the record for that", at)
	}
	return l.attempts.waiting(e)
}

// staged says where the driver has the volume mounted for all pods; empty: nowhere. Where other pods have the volume
// that is as it should be, and empty as well.
func (l *look) staged(r *record, uid string) string {
	for _, m := range l.table.Mounts() {
		below, ok := strings.CutPrefix(m.Point, l.node.PodsDir()+"/")
		of, rest, _ := strings.Cut(below, "/")
		if ok && of != uid && rest == path.Join(volumesDir, csiPlugin, r.dir(), "mount") {
			return ""
		}
	}
	for _, point := range l.node.StagingPoints(r.driver, r.handle, r.name) {
		if len(l.table.All(point)) > 0 {
			return point
		}
	}
	return ""
}
