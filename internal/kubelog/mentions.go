// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

const (
	// maxText bounds the part of a text that is read, in bytes.
	maxText = 1 << 20
	// maxFound bounds the names of one kind that are kept.
	maxFound = 100
)

// Found has the names that a text mentions: each once, in the order of the text, at most 100 of a kind. The objects need not
// exist.
type Found struct {
	// Devices are paths below /dev.
	Devices []string `json:"devices,omitempty"`
	// PersistentVolumes are names that only a PersistentVolume can have, or has as a rule.
	PersistentVolumes []string `json:"persistentVolumes,omitempty"`
	// Volumes are the kubelet's unique names, such as kubernetes.io/rbd/pool:image.
	Volumes []string `json:"volumes,omitempty"`
	PodUIDs []string `json:"podUIDs,omitempty"`
	// Paths are absolute paths that are not below /dev. A path with a space in it is cut there.
	Paths []string `json:"paths,omitempty"`
	// Codes are the faults that the text may describe, in order.
	Codes []fault.Code `json:"codes,omitempty"`
	// Hints are sentences about remarks that have no code.
	Hints []string `json:"hints,omitempty"`
}

// Mentions finds names in a text, which need not be decoded. It reads the first mebibyte, and for faults the first
// 64 KiB.
func Mentions(text string) Found {
	text = Decode(text[:min(len(text), maxText)])
	f := Found{Codes: codes(text)}
	plain := simplify(text)
	for _, r := range remarks {
		if hasAny(plain, r.phrases) && !hasAny(plain, r.none) && r.like.matches(plain) {
			f.Hints = append(f.Hints, r.hint)
		}
	}
	for _, p := range paths(text) {
		if strings.HasPrefix(p, "/dev/") && p != "/dev/" {
			keep(&f.Devices, p)
		} else {
			keep(&f.Paths, p)
		}
	}
	for _, named := range deviceNames {
		if !hasAny(text, named.phrases) {
			continue
		}
		for _, m := range named.pattern.groups(text) {
			keep(&f.Devices, named.dir+strings.ReplaceAll(strings.TrimRight(m[1], ":."), "!", "/")) // as sysfs writes a slash
		}
	}
	collect(&f.PersistentVolumes, text, persistentVolumes)
	collect(&f.Volumes, text, []*pattern{uniqueName})
	for _, m := range podUID.groups(text) {
		keep(&f.PodUIDs, strings.ReplaceAll(m[1], "_", "-")) // as it is in the names of systemd's slices
	}
	return f
}

// deviceName is a pattern whose group is the name of a device below dir. Texts without one of the phrases do not match.
type deviceName struct {
	dir     string
	phrases []string
	pattern *pattern
}

// Characters that end a word, for a set of characters of a regular expression.
const ends = `\s"'` + "`" + `,;()\[\]{}<>|…`

const uuid = `[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}`

var (
	// deviceNames are the forms in which programs and the kernel name a device without its directory. A journal's name ends in an inode.
	deviceNames = []deviceName{
		{"/dev/mapper/", []string{"remove ioctl on ", "remove open device "}, newPattern(`(?:remove ioctl on|unable to remove open device) ([^` + ends + `/]+)`)},
		{"/dev/mapper/", []string{" in use"}, newPattern(`(?:^|[` + ends + `])([^` + ends + `/]+): (?:mapped device is still|map) in use`)},
		{"/dev/mapper/", []string{" is still in use"}, newPattern(`\bDevice "?([^` + ends + `/]+)"? is still in use`)},
		{"/dev/", []string{"Logical volume "}, newPattern(`Logical volume "?([^` + ends + `/]+/[^` + ends + `/]+)"? (?:is |contains |in )`)},
		{"/dev/", []string{"-fs ", "XFS ", "BTRFS"}, newPattern(`(?:EXT[234]-fs|F2FS-fs|XFS|BTRFS)[a-z: ]{0,12}\((?:device )?([a-z][\w!.-]*)`)},
		{"/dev/", []string{"journal ", "flushing file data on "}, newPattern(`(?:journal on device|journal superblock for|flushing file data on) (dm-\d+|[a-z][\w!.]*)`)},
		{"/dev/", []string{" error"}, newPattern(`(?:I/O error on dev(?:ice)?|error, dev|write due to I/O error on) ([a-z][^` + ends + `/]*)`)},
	}
	// uniqueName begins where a word does, and so is no part of a path. {volumeName:...} is how the kubelet prints it, too.
	uniqueName = newPattern(`(?:^|[` + ends + `]|volumeName:)(kubernetes\.io/[a-z0-9-]+/[^` + ends + `]+)`)
	// podUID is the UID of the API server, or the hash that a kubelet gives to a pod from a file. In {... podName:...} the
	// kubelet prints the UID.
	podUID = newPattern(`(?:/pods/|/pod|-pod|podName:|[pP]od "{0,2}|[pP]od-?U[iI][dD]["':= ]{1,4}|\bUID["':= ]{1,4})` +
		`(` + uuid + `|[0-9a-f]{32})\b`)
	// persistentVolumes: a name as provisioners make it, not as a part of an image's name; a volume that is attached, or mounted
	// for the whole node; a place that only PersistentVolumes have.
	persistentVolumes = []*pattern{
		newPattern(`(?:^|[^\w.-])(pvc-` + uuid + `)\b`),
		newPattern(`(?:UnmountDevice|MountDevice|UnmapDevice|AttachVolume\.Attach|DetachVolume\.Detach)[a-z ]* for volume ` +
			`"([^` + ends + `]+)"`),
		newPattern(`/kubernetes\.io/(?:csi/pv|local-volume/mounts)/([^` + ends + `/:]+)`),
		newPattern(`/kubernetes\.io~(?:csi|local-volume)/([^` + ends + `/:]+)`),
	}
)

// pathBreaks ends one path and begins another within a word.
var pathBreaks = strings.NewReplacer(":/", "\n/", "=", "\n")

// paths lists the absolute paths: SOURCE:/TARGET has two, a URL has no path.
func paths(text string) []string {
	var found []string
	endsWord := func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r\"'`,;()[]{}<>|…", r) } // as ends
	for word := range strings.FieldsFuncSeq(text, endsWord) {
		if !strings.Contains(word, "/") || strings.Contains(word, "://") {
			continue
		}
		for part := range strings.SplitSeq(pathBreaks.Replace(word), "\n") {
			part = strings.TrimSuffix(strings.TrimRight(part, ":."), "//deleted")
			if strings.HasPrefix(part, "/") && len(part) > 1 {
				found = append(found, part)
			}
		}
	}
	return found
}

// collect keeps the matches of the groups of the patterns.
func collect(into *[]string, text string, patterns []*pattern) {
	for _, p := range patterns {
		for _, m := range p.groups(text) {
			keep(into, strings.TrimRight(m[1], ":."))
		}
	}
}

func keep(into *[]string, name string) {
	if len(*into) < maxFound && name != "" && !slices.Contains(*into, name) {
		*into = append(*into, name)
	}
}
