// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/linux/sys"
)

// VolumeRecordName is the file beside a CSI volume in which the kubelet describes the volume.
const VolumeRecordName = "vol_data.json"

// VolumeRecord is the content of that file (kubernetes/pkg/volume/csi/csi_plugin.go).
type VolumeRecord struct {
	Driver           string `json:"driverName"`
	Handle           string `json:"volumeHandle"`
	PersistentVolume string `json:"specVolID,omitempty"` // or the name of an inline volume in the pod
	Node             string `json:"nodeName,omitempty"`
	Lifecycle        string `json:"volumeLifecycleMode,omitempty"`
}

// VolumeRecordPath is the path of the record of a CSI volume that is mounted at point: the mount of a pod's volume, or a
// staging path.
func VolumeRecordPath(point string) string { return path.Join(path.Dir(point), VolumeRecordName) }

var (
	// errVolumeRecord is the error for a record that cannot be used.
	errVolumeRecord = errors.New("record cannot be used")
	// ErrEmptyVolumeRecord is an errVolumeRecord: the kubelet does not wait until a record is on the disk.
	ErrEmptyVolumeRecord = fmt.Errorf("%w: it is empty", errVolumeRecord)
)

// Bounds of a record, in bytes. The CSI specification gives a handle 128, and drivers take more.
const (
	usualVolumeRecord = 2 << 10 // that are read at first
	maxVolumeRecord   = 16 << 10
	maxRecordValue    = 4 << 10
)

// ReadVolumeRecord reads a record that was opened with O_PATH. It waits for the file system that the record lies on.
func ReadVolumeRecord(file *sys.FD) (*VolumeRecord, error) {
	text, err := sys.ReadHead(file, usualVolumeRecord)
	if len(text) == usualVolumeRecord {
		text, err = sys.ReadHead(file, maxVolumeRecord+1)
	}
	if err != nil {
		return nil, err
	}
	return parseVolumeRecord(text)
}

// parseVolumeRecord reads one object whose values are strings, each key once. It ignores unknown keys. A
// record without a driver or a handle is an error.
func parseVolumeRecord(text []byte) (*VolumeRecord, error) {
	switch {
	case len(text) == 0:
		return nil, ErrEmptyVolumeRecord
	case len(text) > maxVolumeRecord:
		return nil, fmt.Errorf("%w: it has more than %d bytes", errVolumeRecord, maxVolumeRecord)
	}
	values, err := parseStrings(json.NewDecoder(bytes.NewReader(text)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errVolumeRecord, err)
	}
	r := &VolumeRecord{
		Driver: values["driverName"], Handle: values["volumeHandle"], PersistentVolume: values["specVolID"],
		Node: values["nodeName"], Lifecycle: values["volumeLifecycleMode"],
	}
	if r.Driver == "" || r.Handle == "" {
		return nil, fmt.Errorf("%w: driverName is %q and volumeHandle is %q, both must be set", errVolumeRecord, r.Driver, r.Handle)
	}
	return r, nil
}

// parseStrings reads an object of strings. Text behind it is an error.
func parseStrings(in *json.Decoder) (map[string]string, error) {
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("it is no object")
	}
	values := map[string]string{}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return nil, err
		}
		value, err := in.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string) // the decoder gives nothing else for a name
		text, ok := value.(string)
		_, twice := values[key]
		switch {
		case !ok:
			return nil, fmt.Errorf("%q is no string", key)
		case twice:
			return nil, fmt.Errorf("it has %q twice", key)
		case len(key) > maxRecordValue || len(text) > maxRecordValue:
			return nil, fmt.Errorf("%.64q is longer than %d bytes", key, maxRecordValue)
		case strings.ContainsRune(text, 0) || strings.ContainsRune(text, utf8.RuneError):
			return nil, fmt.Errorf("the value of %q is no text", key)
		}
		values[key] = text
	}
	if _, err := in.Token(); err != nil { // the closing bracket
		return nil, err
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows it")
	}
	return values, nil
}

// Same reports whether both records name one volume of one driver.
func (r *VolumeRecord) Same(other *VolumeRecord) bool {
	return r != nil && other != nil && r.Driver == other.Driver && r.Handle == other.Handle
}

// String names the volume for people.
func (r *VolumeRecord) String() string {
	return fmt.Sprintf("volume handle %q of driver %q", r.Handle, r.Driver)
}
