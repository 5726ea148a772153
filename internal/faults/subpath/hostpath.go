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
	noun string
	is   func(sys.Stat) bool
}

var (
	directory = pathKind{"directory", sys.Stat.IsDir}
	file      = pathKind{"regular file", sys.Stat.IsRegular}
	socket    = pathKind{"socket", sys.Stat.IsSocket}
	character = pathKind{"character device", sys.Stat.IsCharDevice}
	block     = pathKind{"block device", sys.Stat.IsBlockDevice}
	pathKinds = []pathKind{directory, file, socket, character, block}
	demanded  = map[corev1.HostPathType]pathKind{
		corev1.HostPathDirectory: directory, corev1.HostPathDirectoryOrCreate: directory,
		corev1.HostPathFile: file, corev1.HostPathFileOrCreate: file,
		corev1.HostPathSocket: socket, corev1.HostPathCharDev: character, corev1.HostPathBlockDev: block,
	}
)

// kindOf names the kind of a file.
func kindOf(at sys.Stat) string {
	if i := slices.IndexFunc(pathKinds, func(k pathKind) bool { return k.is(at) }); i >= 0 {
		return pathKinds[i].noun
	}
	return "special file"
}

// errNoParent is the error for a path that is not there and whose directory is not there either.
var errNoParent = fmt.Errorf("no directory for it: %w", sys.ENOENT)

// statHostPath looks a path up as the kubelet does, which follows symbolic links. It is called inside the kubelet's
// namespace. A file system that may hang is not asked: package volume judges what lies on one.
func statHostPath(name string) (sys.Stat, error) {
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

// start is how far the start of a container has got, as far as one of its hostPaths is concerned.
type start struct {
	up      bool   // the kubelet has set the pod's volumes up
	refused bool   // the container was refused
	subPath bool   // the container mounts a subPath of the volume
	named   string // the part of the status whose message says why it was refused, and names the path
}

func startOf(pod *corev1.Pod, container string, v corev1.Volume) start {
	status, _ := podinfo.ContainerStatus(pod, container)
	s := start{up: volumesAreUp(status)}
	for _, r := range refusals(status) {
		s.refused = true
		if s.named == "" && names(r.text, v.HostPath.Path) {
			s.named = r.where
		}
	}
	s.subPath = slices.ContainsFunc(podinfo.SubPathMounts(pod), func(w podinfo.SubPathMount) bool { return w.Container == container && w.Volume.Name == v.Name })
	return s
}

// names reports whether a text has that path in it, and not only as part of a longer one.
func names(text, name string) bool {
	name = path.Clean(name)
	for name != "/" {
		before, after, ok := strings.Cut(text, name)
		if !ok {
			return false
		}
		if !partOfPath(before, len(before)-1) && !partOfPath(strings.TrimPrefix(after, "/"), 0) {
			return true
		}
		text = after
	}
	return false
}

func partOfPath(text string, i int) bool {
	if i < 0 || i >= len(text) {
		return false
	}
	c := text[i]
	return strings.IndexByte("/._-", c) >= 0 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// judgeHostPath decides whether a container that is not started can get a hostPath volume, by what a lookup of the path gave.
// No code: it can, or nothing is known.
func judgeHostPath(v corev1.Volume, s start, at sys.Stat, err error) (fault.Code, []string) {
	want := podinfo.HostPathType(v.HostPath)
	kind, demands := demanded[want]
	switch {
	case errors.Is(err, sys.ENOTDIR):
		return fault.MissingBindSource, []string{
			nothingThere(v.Name, v.HostPath.Path), "a part of that path is a file, so that nothing can be made there",
		}
	case errors.Is(err, sys.ENOENT):
		if why := s.fails(v.HostPath, errors.Is(err, errNoParent)); why != "" {
			return fault.MissingBindSource, []string{nothingThere(v.Name, v.HostPath.Path), why}
		}
	case err == nil && demands && !kind.is(at):
		return fault.SourceTypeMismatch, []string{
			fmt.Sprintf("volume %q is to come from %q: that is a %s, and type %s of the volume takes a %s only", v.Name, v.HostPath.Path,
				kindOf(at), want, kind.noun),
		}
	}
	return "", nil
}

// fails says why the container cannot be started with a hostPath that is not there; empty if the path is made.
func (s start) fails(h *corev1.HostPathVolumeSource, noParent bool) string {
	want := podinfo.HostPathType(h)
	switch {
	case !podinfo.CreatesHostPath(h) && s.up:
		return fmt.Sprintf("a %s was there when the kubelet set the pod up, and is gone since: the kubelet refuses the next pod",
			demanded[want].noun)
	case !podinfo.CreatesHostPath(h):
		return fmt.Sprintf("the kubelet starts no container of the pod before a %s is there", demanded[want].noun)
	case want == corev1.HostPathFileOrCreate && noParent && !s.up:
		return "the kubelet makes the file, but not the directory that it is to lie in"
	case s.refused && s.subPath:
		return "the kubelet looks for the subPath in it before a runtime could make it"
	case s.named != "":
		return "the container was refused with a message that names it, in " + s.named
	}
	return ""
}
