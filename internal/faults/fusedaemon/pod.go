// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/sys"
)

// findPod looks for the driver's pod: by the process that listens on its socket, and if there is none, by the processes
// that the kernel killed.
func (s *exitSearch) findPod(ctx context.Context) {
	dir, err := s.pluginDir(ctx)
	if err != nil {
		s.addSentence("it is not known who serves driver %q: %v", s.question.Driver, err)
		return
	}
	owner, err := s.reading.listeners.getOrAsk(dir, func() (cri.Owner, error) { return s.reading.listeningContainer(ctx, dir) })
	if err == nil {
		s.servingContainerID = owner.ContainerID
		s.setOwner(owner)
		s.addSentence("driver %q is served by container %q of pod %s/%s (UID %s)", s.question.Driver, owner.Container,
			s.exit.Pod.Namespace, s.exit.Pod.Name, s.exit.Pod.UID)
		return
	}
	s.addSentence("it is not known who serves driver %q now: %v", s.question.Driver, err)
	// The container of a process that was killed has the driver's directory: it is the driver's, or one of the same pod that announces the
	// driver to the kubelet.
	for _, k := range slices.Backward(s.kills) {
		owner, err := s.reading.containerOwner(ctx, "0::"+k.Cgroup+"\n")
		hasDir := slices.ContainsFunc(owner.Mounts, func(m cri.Mount) bool { return path.Clean(m.HostPath) == dir })
		if err == nil && owner.PodUID != "" && hasDir {
			s.setOwner(owner)
			return
		}
	}
}

func (s *exitSearch) setOwner(o cri.Owner) {
	s.exit.Pod = fault.Pod{Namespace: o.PodNamespace, Name: o.PodName, UID: o.PodUID}
	s.exit.Container = o.Container
}

// pluginDir is where the driver's socket is, in the kubelet's mount namespace.
func (s *exitSearch) pluginDir(ctx context.Context) (string, error) {
	if d := s.question.Driver; d == "" || d == "." || d == ".." || strings.ContainsAny(d, "/\x00") {
		return "", errors.New("that is no driver's name")
	}
	if s.reading.analyzer.Runtime == nil {
		return "", errNoRuntime
	}
	n, err := s.reading.analyzer.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	return path.Join(n.Root, "plugins", s.question.Driver), nil
}

// listeningContainer returns the container whose process listens on the driver's socket.
func (r *reading) listeningContainer(ctx context.Context, dir string) (cri.Owner, error) {
	n, err := r.analyzer.Kubelet.Node(ctx)
	if err != nil {
		return cri.Owner{}, err
	}
	socket := dir + "/csi.sock"
	var fd *sys.FD
	err = n.Do(ctx, func() (err error) {
		fd, err = sys.Lookup(socket)
		return err
	})
	if err != nil {
		return cri.Owner{}, fmt.Errorf("open %q: %w", socket, err)
	}
	defer fd.Close()
	pid, err := sys.ListenerOf(fd)
	if err != nil {
		return cri.Owner{}, fmt.Errorf("%q: %w", socket, err)
	}
	cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
	if err != nil {
		return cri.Owner{}, fmt.Errorf("read control group of process %d, which listens on %q: %w", pid, socket, err)
	}
	owner, err := r.containerOwner(ctx, string(cgroup))
	if err == nil && owner.PodUID == "" {
		err = errors.New("its container is in no pod")
	}
	if err != nil {
		return cri.Owner{}, fmt.Errorf("process %d listens on %q: %w", pid, socket, err)
	}
	return owner, nil
}

// podUIDOf is the UID of the pod that a control group is in, by the first name in it that a kubelet would give; empty
// where there is none.
func podUIDOf(cgroup string) string {
	inside := false
	for name := range strings.SplitSeq(cgroup, "/") {
		name, slice := strings.CutSuffix(name, ".slice")
		before, uid, found := strings.Cut(name, "pod")
		if slice { // kubepods-burstable-podUID.slice, where a kubelet may have a prefix of its own
			if i := strings.LastIndex(name, "-pod"); i >= 0 {
				return strings.ReplaceAll(name[i+len("-pod"):], "_", "-")
			}
		}
		if inside && found && before == "" && uid != "" {
			return uid
		}
		inside = inside || name == "kubepods"
	}
	return ""
}
