// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"regexp"
	"strings"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
)

// The kubelet writes the keys of a ConfigMap, a Secret, a projected or a downwardAPI volume into a directory whose name is
// the time, links "..data" to that, and each key to its file below "..data" (kubernetes/pkg/volume/util/atomic_writer.go).
// A container cannot write there: what has exactly these names and forms is the kubelet's copy.

// timeName is the name of the directory that has the keys.
var timeName = regexp.MustCompile(`^\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d{1,20}$`)

// The links to that directory: the one that counts, and the one that is renamed to it.
const (
	dataLink     = kubelet.DataLink
	nextDataLink = dataLink + "_tmp"
)

// inKeyVolume reports whether the path leads into such a volume.
func inKeyVolume(parts []string) bool {
	return len(parts) > 3 && parts[0] == volumesDir && kubelet.WritesAtomically(kubelet.PluginOf(parts[1]))
}

// isKeyFilePath recognises the path of a key: volumes/PLUGIN/NAME/TIME/KEY, where KEY may have several parts.
func isKeyFilePath(parts []string) bool {
	return inKeyVolume(parts) && len(parts) > 4 && timeName.MatchString(parts[3]) && mayBeKey(parts[4])
}

// mayBeKey reports whether the kubelet writes keys of that name: it keeps those with two dots in front for itself.
func mayBeKey(name string) bool { return !strings.HasPrefix(name, "..") }

// isKeyLink recognises a link of the kubelet's by its path and its target.
func isKeyLink(parts []string, target string) bool {
	if !inKeyVolume(parts) || len(parts) != 4 {
		return false
	}
	if name := parts[3]; name != dataLink && name != nextDataLink {
		return mayBeKey(name) && target == dataLink+"/"+name
	}
	return timeName.MatchString(target)
}

// classifyLink says what a symbolic link is that is called name in dir. It follows nothing.
func (e *Entry) classifyLink(dir *sys.FD, name string) {
	e.Kind, e.Reason = Other, "it is a symbolic link"
	st, err := statLink(dir, name)
	if err != nil {
		return
	}
	target, err := dir.ReadlinkAt(name)
	if err == nil && st.Nlink == 1 && isKeyLink(strings.Split(e.Path, "/"), target) {
		e.Kind, e.Reason = KeyLink, ""
		e.facts = EntryFacts{Inode: st.Ino, Changed: st.Changed, Made: st.Born}
	}
}

// statLink inspects a symbolic link, and returns ELOOP for anything else.
func statLink(dir *sys.FD, name string) (sys.Stat, error) {
	st, err := dir.StatAt(name, sys.StatType|sys.StatNlink|sys.StatIno|sys.StatChanged|sys.StatBorn)
	if err == nil && !st.IsLink() {
		err = sys.ELOOP
	}
	return st, err
}
