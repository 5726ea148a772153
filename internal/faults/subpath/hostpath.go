// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// pathKind is what the kubelet demands of a hostPath that is there (kubernetes/pkg/volume/hostpath/host_path.go).
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

// errNoParent is the error for a path that is not there and whose directory is not there either.
var errNoParent = fmt.Errorf("no directory for it: %w", sys.ENOENT)

// followHostPath looks a path up as the kubelet does, which follows symbolic links. It is called inside the kubelet's
// namespace. A file system that may hang is not asked: package volume judges what lies on one.
func followHostPath(name string) (sys.Stat, error) {
	fd, resolved, err := mountns.LookupFollowing(name)
	if errors.Is(err, sys.ENOENT) {
		if parent, err := mountns.Lookup(0, path.Dir(resolved)); errors.Is(err, sys.ENOENT) {
			return sys.Stat{}, errNoParent
		} else if err == nil {
			parent.Close()
		}
	}
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	if err := mountns.NotHanging(resolved, fd); err != nil {
		return sys.Stat{}, err
	}
	return fd.Stat(sys.StatType)
}

// startProgress is how far the start of a container has got, as far as one of its hostPaths is concerned.
type startProgress struct {
	volumesUp     bool   // the kubelet has set the pod's volumes up
	refused       bool   // the container was refused
	mountsSubPath bool   // the container mounts a subPath of the volume
	messageField  string // the part of the status whose message says why it was refused, and names the path
}

func startProgressOf(pod *corev1.Pod, container string, v corev1.Volume) startProgress {
	status, _ := podinfo.ContainerStatus(pod, container)
	progress := startProgress{volumesUp: volumesAreUp(status)}
	for _, r := range startRefusals(status) {
		progress.refused = true
		if progress.messageField == "" && containsPath(r.message, v.HostPath.Path) {
			progress.messageField = r.statusField
		}
	}
	progress.mountsSubPath = slices.ContainsFunc(podinfo.SubPathMounts(pod), func(expected podinfo.SubPathMount) bool {
		return expected.Container == container && expected.Volume.Name == v.Name
	})
	return progress
}

// containsPath reports whether a text has that path in it, and not only as part of a longer one.
func containsPath(text, name string) bool {
	name = path.Clean(name)
	for name != "/" {
		before, after, ok := strings.Cut(text, name)
		if !ok {
			return false
		}
		if !isPathByte(before, len(before)-1) && !isPathByte(strings.TrimPrefix(after, "/"), 0) {
			return true
		}
		text = after
	}
	return false
}

func isPathByte(text string, i int) bool {
	if i < 0 || i >= len(text) {
		return false
	}
	c := text[i]
	return strings.IndexByte("/._-", c) >= 0 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// judgeHostPath decides whether a container that is not started can get a hostPath volume, by what a lookup of the path
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
		if why := progress.failureReason(volume.HostPath, errors.Is(err, errNoParent)); why != "" {
			return fault.MissingBindSource, []string{missingMessage(volume.Name, volume.HostPath.Path), why}
		}
	case err == nil && demands && !kind.matches(stat):
		return fault.SourceTypeMismatch, []string{
			fmt.Sprintf("volume %q is to come from %q: that is a %s, and type %s of the volume takes a %s only", volume.Name, volume.HostPath.Path,
				describeKind(stat), want, kind.noun),
		}
	}
	return "", nil
}

// failureReason says why the container cannot be started with a hostPath that is not there; empty if the path is made.
func (s startProgress) failureReason(h *corev1.HostPathVolumeSource, noParent bool) string {
	want := podinfo.HostPathType(h)
	switch {
	case !podinfo.CreatesHostPath(h) && s.volumesUp:
		return fmt.Sprintf("a %s was there when the kubelet set the pod up, and is gone since: the kubelet refuses the next pod",
			kindByHostPathType[want].noun)
	case !podinfo.CreatesHostPath(h):
		return fmt.Sprintf("the kubelet starts no container of the pod before a %s is there", kindByHostPathType[want].noun)
	case want == corev1.HostPathFileOrCreate && noParent && !s.volumesUp:
		return "the kubelet makes the file, but not the directory that it is to lie in"
	case s.refused && s.mountsSubPath:
		return "the kubelet looks for the subPath in it before a runtime could make it"
	case s.messageField != "":
		return "the container was refused with a message that names it, in " + s.messageField
	}
	return ""
}
