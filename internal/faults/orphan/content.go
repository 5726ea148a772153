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

// listEntries lists the contents of the pod's directory, and that itself last. If it is gone there is nothing. It never leaves
// the mount of the directory and never follows a link.
func (p *Pod) listEntries(pods *sys.FD) error {
	if err := p.addEntryOf(pods, p.UID, ".", 0); err != nil {
		return err
	}
	for _, e := range p.allEntries {
		parts := strings.Split(e.Path, "/")
		switch {
		case parts[0] == volumesDir && len(parts) == 3:
			p.Volumes = append(p.Volumes, parts[1]+"/"+parts[2])
		case parts[0] == subPathsDir:
			p.SubPaths = true
		}
	}
	return nil
}

// listPlaces lists the directory of the pod and, in it, those in which the kubelet has volumes and subPaths, but not their content. If it is gone there
// is nothing. A directory that cannot be looked into has no volumes.
func (p *Pod) listPlaces(pods *sys.FD) {
	dir, ok := p.openDirectory(pods, p.UID, ".")
	if !ok {
		return
	}
	defer dir.Close()
	if binds, ok := p.openDirectory(dir, subPathsDir, subPathsDir); ok {
		binds.Close()
		p.SubPaths = true
	}
	volumes, ok := p.openDirectory(dir, volumesDir, volumesDir)
	if !ok {
		return
	}
	defer volumes.Close()
	for _, plugin := range sortedNames(volumes) {
		if of, ok := p.openDirectory(volumes, plugin, path.Join(volumesDir, plugin)); ok {
			for _, name := range sortedNames(of) {
				p.Volumes = append(p.Volumes, plugin+"/"+name)
			}
			of.Close()
		}
	}
}

// openDirectory opens the directory that is called name in dir, and adds it to the entries. ok is false if it is none, or cannot be opened.
func (p *Pod) openDirectory(dir *sys.FD, name, rel string) (fd *sys.FD, ok bool) {
	fd, err := sys.OpenEntry(dir, name)
	if err != nil {
		if !errors.Is(err, sys.ENOENT) {
			p.allEntries = append(p.allEntries, Entry{Path: rel, Kind: Other, Reason: "it cannot be opened: " + err.Error()})
		}
		return nil, false
	}
	st, err := fd.Stat(sys.StatType | sys.StatIno | sys.StatChanged | sys.StatBorn)
	if err != nil || !st.IsDir() {
		fd.Close()
		return nil, false
	}
	p.allEntries = append(p.allEntries, Entry{Path: rel, Kind: Directory, facts: EntryFacts{Inode: st.Ino, Changed: st.Changed, Made: st.Born}})
	return fd, true
}

// sortedNames are the names in a directory; none if it cannot be listed.
func sortedNames(dir *sys.FD) []string {
	names, _, _ := sys.ListDir(dir, maxEntries) // an error leaves those that were read
	slices.Sort(names)
	return names
}

// addEntryOf adds what is called name in dir, after all that is in it. An entry that cannot be looked at may be data.
func (p *Pod) addEntryOf(dir *sys.FD, name, rel string, depth int) error {
	fd, err := sys.OpenEntry(dir, name)
	switch {
	case errors.Is(err, sys.ENOENT):
		return nil
	case errors.Is(err, sys.EXDEV):
		p.allEntries = append(p.allEntries, Entry{Path: rel, Kind: MountPoint, Reason: "something is mounted on it"})
		return nil
	case errors.Is(err, sys.ELOOP):
		entry := Entry{Path: rel}
		entry.classifyLink(dir, name)
		p.allEntries = append(p.allEntries, entry)
		return nil
	case err != nil:
		p.allEntries = append(p.allEntries, Entry{Path: rel, Kind: Other, Reason: "it cannot be opened: " + err.Error()})
		return nil
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno | sys.StatChanged | sys.StatBorn)
	if err != nil {
		return err
	}
	entry := Entry{Path: rel, facts: EntryFacts{Inode: st.Ino, Changed: st.Changed, Made: st.Born}}
	if !st.IsDir() {
		entry.classifyFile(fd, st)
		p.allEntries = append(p.allEntries, entry)
		return nil
	}
	switch top, _, _ := strings.Cut(rel, "/"); top {
	case ".", volumesDir, subPathsDir, devicesDir, pluginsDir, logsDir:
		entry.Kind = Directory
	default:
		entry.Kind, entry.Reason = Other, "the kubelet makes no such directory"
	}
	if err := p.addChildren(fd, &entry, depth); err != nil {
		return err
	}
	p.allEntries = append(p.allEntries, entry)
	return nil
}

// addChildren adds what is in a directory.
func (p *Pod) addChildren(fd *sys.FD, entry *Entry, depth int) error {
	free := maxEntries - len(p.allEntries)
	if depth >= maxDepth || free <= 0 {
		entry.Kind, entry.Reason = Other, fmt.Sprintf("it was not looked into: at most %d entries of a pod are, and %d levels", maxEntries, maxDepth)
		return nil
	}
	names, more, err := sys.ListDir(fd, free)
	switch {
	case err != nil:
		names, entry.Kind, entry.Reason = nil, Other, "it cannot be listed: "+err.Error()
	case more:
		names, entry.Kind, entry.Reason = nil, Other, fmt.Sprintf("it was not looked into: it has more than %d entries", free)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.addEntryOf(fd, name, path.Join(entry.Path, name), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// classifyFile says what a file is, by the place where the kubelet has such ones, and by what is in it.
func (e *Entry) classifyFile(fd *sys.FD, st sys.Stat) {
	e.Kind = Other
	parts := strings.Split(e.Path, "/")
	switch {
	case !st.IsRegular():
		e.Reason = "it is neither a directory nor a regular file"
	case isRecordPath(parts):
		if st.Nlink != 1 {
			e.Reason = fmt.Sprintf("it has %d names, and the kubelet gives it one", st.Nlink)
			return
		}
		record, err := readRecord(fd, parts[2])
		if err != nil && !errors.Is(err, kubelet.ErrEmptyVolumeRecord) {
			e.Reason = "it is no record of this volume: " + err.Error()
			return
		}
		e.Kind, e.facts.Record = Record, record
	case isSubPathPath(parts):
		text, err := sys.ReadHead(fd, 1)
		switch {
		case err != nil:
			e.Reason = "it cannot be read: " + err.Error()
		case len(text) > 0 || st.Nlink != 1:
			e.Reason = "it has something in it, or several names: the kubelet's is empty and has one"
		default:
			e.Kind = SubPath
		}
	case isKeyFilePath(parts):
		if e.Kind = KeyFile; st.Nlink != 1 {
			e.Kind, e.Reason = Other, fmt.Sprintf("it has %d names, and the kubelet gives it one", st.Nlink)
		}
	case e.Path == hostsFile, parts[0] == logsDir && len(parts) == 3, parts[0] == pluginsDir && len(parts) == 4 && parts[3] == "ready":
		e.Kind = KubeletFile
	default:
		e.Reason = "it is a file that may have data in it"
	}
}

// isRecordPath recognises the path of a record: volumes/kubernetes.io~csi/NAME/vol_data.json.
func isRecordPath(parts []string) bool {
	return len(parts) == 4 && parts[0] == volumesDir && parts[1] == csiPlugin && parts[3] == kubelet.VolumeRecordName
}

// isSubPathPath recognises the path of a subPath: volume-subpaths/VOLUME/CONTAINER/INDEX.
func isSubPathPath(parts []string) bool {
	if len(parts) != 4 || parts[0] != subPathsDir {
		return false
	}
	n, err := strconv.Atoi(parts[3])
	return err == nil && n >= 0 && strconv.Itoa(n) == parts[3]
}
