// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Bounds of a record, in bytes. The CSI specification gives a handle 128, and drivers take more.
const (
	maxRecord = 64 << 10
	maxValue  = 4 << 10
)

var errRecord = errors.New("record cannot be used")

// parseRecord reads a vol_data.json: one object whose values are strings, each key once. Keys that are not known are
// passed over. A record without a driver or a handle names nothing and is an error.
func parseRecord(text []byte) (Record, error) {
	if len(text) > maxRecord {
		return Record{}, fmt.Errorf("%w: it has %d bytes, %d at most", errRecord, len(text), maxRecord)
	}
	values, err := parseObject(json.NewDecoder(bytes.NewReader(text)))
	if err != nil {
		return Record{}, err
	}
	r := Record{
		Driver: values["driverName"], Handle: values["volumeHandle"], PersistentVolume: values["specVolID"],
		Node: values["nodeName"], Lifecycle: values["volumeLifecycleMode"],
	}
	if r.Driver == "" || r.Handle == "" {
		return Record{}, fmt.Errorf("%w: driverName is %q and volumeHandle is %q, both must be set", errRecord, r.Driver, r.Handle)
	}
	return r, nil
}

// parseObject reads an object of strings that nothing follows.
func parseObject(in *json.Decoder) (map[string]string, error) {
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("%w: it is no object", errRecord)
	}
	values := map[string]string{}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errRecord, err)
		}
		value, err := in.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errRecord, err)
		}
		if err := take(values, name, value); err != nil {
			return nil, err
		}
	}
	if _, err := in.Token(); err != nil { // the closing bracket
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows it", errRecord)
	}
	return values, nil
}

func take(values map[string]string, name, value json.Token) error {
	key, _ := name.(string) // the decoder gives nothing else for a name
	text, ok := value.(string)
	_, twice := values[key]
	switch {
	case !ok:
		return fmt.Errorf("%w: %q is no string", errRecord, key)
	case twice:
		return fmt.Errorf("%w: it has %q twice", errRecord, key)
	case len(key) > maxValue || len(text) > maxValue:
		return fmt.Errorf("%w: %.64q is longer than %d bytes", errRecord, key, maxValue)
	case strings.ContainsRune(text, 0) || strings.ContainsRune(text, utf8.RuneError):
		return fmt.Errorf("%w: the value of %q is no text", errRecord, key)
	}
	values[key] = text
	return nil
}

// usualRecord is how much of a record is read at first, in bytes.
const usualRecord = 2 << 10

// readRecord reads the record of what is mounted at point. It is called inside the kubelet's namespace, and does not ask
// a file system that may hang.
func (l *look) readRecord(point string) (*Record, error) {
	name := kubelet.VolumeRecord(point)
	dir, err := mountns.Lookup(0, path.Dir(name))
	if err != nil {
		return nil, fmt.Errorf("open record %q: %w", name, err)
	}
	defer dir.Close()
	text, err := l.readFile(dir, path.Base(name))
	if err != nil {
		return nil, fmt.Errorf("read record %q: %w", name, err)
	}
	r, err := parseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("read record %q: %w", name, err)
	}
	return &r, nil
}

// readFile reads the regular file of that name that lies in dir. The root of a mount may be of any file system, and is not
// to be asked for what is in it. What was opened is what is read: a pipe or a device would have to be waited for.
func (l *look) readFile(dir *sys.FD, name string) ([]byte, error) {
	if err := l.local(dir); err != nil {
		return nil, err
	}
	foreign := fmt.Errorf("%w: it is no file of the kubelet's", errRecord)
	file, err := sys.OpenEntry(dir, name)
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
	text, err := sys.ReadHead(file, usualRecord)
	if len(text) == usualRecord {
		text, err = sys.ReadHead(file, maxRecord+1)
	}
	return text, err
}

// local makes sure that a directory is not the root of a mount, and lies on a file system that does not hang: the kernel
// may know the way to it and nothing of what is in it.
func (l *look) local(dir *sys.FD) error {
	st, err := dir.Stat(sys.StatType | sys.StatMountID)
	if err != nil {
		return err
	}
	number := int(st.MountID)
	if !st.Has(sys.StatMountID) {
		if number, err = dir.FDMountID(); err != nil {
			return err
		}
	}
	m, ok := l.table.ByID(number)
	switch {
	case !ok:
		return fmt.Errorf("%w: its directory was mounted just now", errRecord)
	case st.MountRoot, m.Point != "/" && mountns.MayHang(m.FSType):
		return fmt.Errorf("%w: its directory is on a file system of type %q, mounted at %q, which may not answer", errRecord, m.FSType, m.Point)
	}
	return nil
}

// same tells whether both records name one volume of one driver.
func (r *Record) same(other *Record) bool {
	return r != nil && other != nil && r.Driver == other.Driver && r.Handle == other.Handle
}

// String is the volume for people.
func (r *Record) String() string {
	return fmt.Sprintf("volume handle %q of driver %q", r.Handle, r.Driver)
}
