// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
)

// The kubelet's names in the directory of a pod.
const (
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	devicesDir  = "volumeDevices"
	pluginsDir  = "plugins"
	logsDir     = "containers" // files for the last words of containers
	hostsFile   = "etc-hosts"
)

// Bounds of how much of one pod is looked at.
const (
	maxEntries = 4096
	maxDepth   = 32
)

// walker goes through the directory of one pod. It never leaves its mount and never follows a link.
type walker struct {
	*look
	pod *Pod
}

// fill lists what lies in the directory of a pod, and that itself last. If it is gone there is nothing.
func (l *look) fill(p *Pod, pods *sys.FD) error {
	w := &walker{look: l, pod: p}
	if err := w.entry(pods, p.UID, ".", 0); err != nil {
		return err
	}
	for _, e := range p.all {
		parts := strings.Split(e.Path, "/")
		switch {
		case parts[0] == volumesDir && len(parts) == 3:
			p.Volumes = append(p.Volumes, parts[1]+"/"+parts[2])
		case parts[0] == subPathsDir:
			p.SubPaths = true
		}
		p.files = p.files || e.Kind == KubeletFile
	}
	return nil
}

// entry adds what is called name in dir, after all that is in it. An entry that cannot be looked at may be data.
func (w *walker) entry(dir *sys.FD, name, rel string, depth int) error {
	fd, err := sys.OpenEntry(dir, name)
	switch {
	case errors.Is(err, sys.ENOENT):
		return nil
	case errors.Is(err, sys.EXDEV):
		w.add(Entry{Path: rel, Kind: MountPoint, Why: "something is mounted on it"})
		return nil
	case errors.Is(err, sys.ELOOP):
		w.add(Entry{Path: rel, Kind: Other, Why: "it is a symbolic link"})
		return nil
	case err != nil:
		w.add(Entry{Path: rel, Kind: Other, Why: "it cannot be opened: " + err.Error()})
		return nil
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno | sys.StatChanged)
	if err != nil {
		return err
	}
	e := Entry{Path: rel, inode: st.Ino, changed: st.Changed}
	if e.made, err = fd.BirthTime(); err != nil {
		return err
	}
	if !st.IsDir() {
		e.classify(fd, st)
		w.add(e)
		return nil
	}
	e.Kind, e.Why = Directory, strange(rel)
	if e.Why != "" {
		e.Kind = Other
	}
	if err := w.children(fd, &e, depth); err != nil {
		return err
	}
	w.add(e)
	return nil
}

func (w *walker) add(e Entry) { w.pod.all = append(w.pod.all, e) }

// list returns the names in a directory in order, or says why not.
func list(fd *sys.FD, limit int) (names []string, why string) {
	names, more, err := sys.ListDir(fd, limit)
	switch {
	case err != nil:
		return nil, "it cannot be listed: " + err.Error()
	case more:
		return nil, fmt.Sprintf("it was not looked into: it has more than %d entries", limit)
	}
	slices.Sort(names)
	return names, ""
}

// children adds what is in a directory.
func (w *walker) children(fd *sys.FD, of *Entry, depth int) error {
	free := maxEntries - len(w.pod.all)
	if depth >= maxDepth || free <= 0 {
		of.Kind, of.Why = Other, fmt.Sprintf("it was not looked into: at most %d entries of a pod are, and %d levels", maxEntries, maxDepth)
		return nil
	}
	names, why := list(fd, free)
	if why != "" {
		of.Kind, of.Why = Other, why
	}
	for _, name := range names {
		if err := w.entry(fd, name, path.Join(of.Path, name), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// strange says why a directory is none that the kubelet makes.
func strange(rel string) string {
	switch top, _, _ := strings.Cut(rel, "/"); top {
	case ".", volumesDir, subPathsDir, devicesDir, pluginsDir, logsDir:
		return ""
	}
	return "the kubelet makes no such directory"
}

// classify says what a file is, by the place where the kubelet has such ones, and by what is in it.
func (e *Entry) classify(fd *sys.FD, st sys.Stat) {
	e.Kind = Other
	parts := strings.Split(e.Path, "/")
	switch {
	case !st.IsRegular():
		e.Why = "it is neither a directory nor a regular file"
	case isRecord(parts):
		e.recordOf(fd, st, parts[2])
	case isSubPath(parts):
		e.emptyFile(fd, st)
	case e.Path == hostsFile, parts[0] == logsDir && len(parts) == 3, parts[0] == pluginsDir && len(parts) == 4 && parts[3] == "ready":
		e.Kind = KubeletFile
	default:
		e.Why = "it is a file that may have data in it"
	}
}

// isRecord recognises the path of a record: volumes/kubernetes.io~csi/NAME/vol_data.json.
func isRecord(parts []string) bool {
	return len(parts) == 4 && parts[0] == volumesDir && parts[1] == csiPlugin && parts[3] == kubelet.VolumeRecordName
}

// isSubPath recognises the path of a subPath: volume-subpaths/VOLUME/CONTAINER/INDEX.
func isSubPath(parts []string) bool {
	if len(parts) != 4 || parts[0] != subPathsDir {
		return false
	}
	n, err := strconv.Atoi(parts[3])
	return err == nil && n >= 0 && strconv.Itoa(n) == parts[3]
}

func (e *Entry) recordOf(fd *sys.FD, st sys.Stat, volume string) {
	if st.Nlink != 1 {
		e.Why = fmt.Sprintf("it has %d names, and the kubelet gives it one", st.Nlink)
		return
	}
	record, err := readRecord(fd, volume)
	if err != nil && !errors.Is(err, kubelet.ErrEmptyVolumeRecord) {
		e.Why = "it is no record of this volume: " + err.Error()
		return
	}
	e.Kind, e.record = Record, record
}

func (e *Entry) emptyFile(fd *sys.FD, st sys.Stat) {
	text, err := sys.ReadHead(fd, 1)
	switch {
	case err != nil:
		e.Why = "it cannot be read: " + err.Error()
	case len(text) > 0 || st.Nlink != 1:
		e.Why = "it has something in it, or several names: the kubelet's is empty and has one"
	default:
		e.Kind = SubPath
	}
}
