// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// pathKind is the demand of the kubelet on a hostPath that is there (kubernetes/pkg/volume/hostpath/host_path.go).
type pathKind struct {
	noun    string
	matches func(sys.Stat) bool
}

var (
	directoryKind      = pathKind{"directory", sys.Stat.IsDir}
	fileKind           = pathKind{"regular file", sys.Stat.IsRegular}
	socketKind         = pathKind{"socket", sys.Stat.IsSocket}
	characterDevice    = pathKind{"character device", sys.Stat.IsCharDevice}
	blockDevice        = pathKind{"block device", sys.Stat.IsBlockDevice}
	pathKinds          = []pathKind{directoryKind, fileKind, socketKind, characterDevice, blockDevice}
	kindByHostPathType = map[corev1.HostPathType]pathKind{
		corev1.HostPathDirectory: directoryKind, corev1.HostPathDirectoryOrCreate: directoryKind,
		corev1.HostPathFile: fileKind, corev1.HostPathFileOrCreate: fileKind,
		corev1.HostPathSocket: socketKind, corev1.HostPathCharDev: characterDevice, corev1.HostPathBlockDev: blockDevice,
	}
)

// describeKind names the kind of a file.
func describeKind(at sys.Stat) string {
	if i := slices.IndexFunc(pathKinds, func(k pathKind) bool { return k.matches(at) }); i >= 0 {
		return pathKinds[i].noun
	}
	return "special file"
}

// Absence is the error for a path at which nothing is, with the kernel's word about its making.
type Absence struct {
	// NoParent: its directory is not there either.
	NoParent bool `json:"noParent,omitempty"`
	// ReadOnly: the part of the way that is there lies on a file system that is read-only.
	ReadOnly bool `json:"readOnly,omitempty"`
	// DeadLink: the way to it, or it itself, is a symbolic link to nothing, so no directory can be made there.
	DeadLink bool `json:"deadLink,omitempty"`
}

// Error says that nothing is there.
func (a Absence) Error() string { return "nothing is there: " + sys.ENOENT.Error() }

// Unwrap is ENOENT.
func (a Absence) Unwrap() error { return sys.ENOENT }

// absenceOf says how a path is missing whose lookup gave ENOENT after links to resolved.
func absenceOf(view mountns.View, name, resolved string) (a Absence) {
	parent, err := view.Lookup(path.Dir(resolved))
	if err == nil {
		parent.Close()
	}
	a.NoParent = errors.Is(err, sys.ENOENT)
	for name = path.Clean(name); path.IsAbs(name) && name != "/"; name = path.Dir(name) {
		dir, resolved, err := view.LookupFollowing(path.Dir(name))
		if errors.Is(err, sys.ENOENT) {
			continue
		}
		if err != nil {
			break
		}
		// It may be a link that leads nowhere, or of a file system in which nothing can be made.
		if entry := path.Join(resolved, path.Base(name)); view.NotHanging(entry, dir) == nil {
			made, err := mountns.LookupIn(dir, entry)
			if err == nil {
				made.Close() // meanwhile
			}
			if a.DeadLink = errors.Is(err, sys.ELOOP); errors.Is(err, sys.ENOENT) {
				readOnly, err := dir.FileSystemReadOnly()
				a.ReadOnly = err == nil && readOnly
			}
		}
		dir.Close()
		break
	}
	return a
}

// startProgress is how far the start of a container has got, as far as one of its hostPaths is concerned.
type startProgress struct {
	volumesUp     bool // the kubelet has set the pod's volumes up
	refused       bool // the container was refused
	mountsSubPath bool // the container mounts a subPath of the volume
}

// judgeHostPath decides whether a container that is not started can get a hostPath volume, by the answer to a lookup of the path
// gave. No code: it can, or nothing is known.
func judgeHostPath(volume corev1.Volume, progress startProgress, stat sys.Stat, err error) (fault.Code, []string) {
	want := podinfo.HostPathType(volume.HostPath)
	kind, demands := kindByHostPathType[want]
	switch {
	case errors.Is(err, sys.ENOTDIR):
		return fault.MissingBindSource, []string{
			missingMessage(volume.Name, volume.HostPath.Path), "a part of that path is a file, so that nothing can be made there",
		}
	case errors.Is(err, sys.ENOENT):
		absent := Absence{}
		errors.As(err, &absent)
		var why string // the container cannot be started
		switch creates := podinfo.CreatesHostPath(volume.HostPath); {
		case !creates && progress.volumesUp:
			why = fmt.Sprintf("a %s was there when the kubelet set the pod up, and is gone since: the kubelet refuses the next pod", kind.noun)
		case !creates:
			why = fmt.Sprintf("the kubelet starts no container of the pod before a %s is there", kind.noun)
		case want == corev1.HostPathFileOrCreate && absent.NoParent && !progress.volumesUp:
			why = "the kubelet makes the file, but not the directory that it is to lie in"
		case progress.refused && progress.mountsSubPath:
			why = "the kubelet looks for the subPath in it before a runtime could make it"
		case progress.refused && absent.ReadOnly:
			why = "the container was refused, and nothing can be made there: the file system is read-only"
		case progress.refused && absent.DeadLink && want != corev1.HostPathFileOrCreate:
			why = "the container was refused, and no directory can be made there: the path has a symbolic link to what does not exist"
		default:
			return "", nil
		}
		return fault.MissingBindSource, []string{missingMessage(volume.Name, volume.HostPath.Path), why}
	case err == nil && demands && !kind.matches(stat):
		return fault.SourceTypeMismatch, []string{
			fmt.Sprintf("volume %q is to come from %q: that is a %s, and type %s of the volume takes a %s only", volume.Name, volume.HostPath.Path,
				describeKind(stat), want, kind.noun),
		}
	}
	return "", nil
}
