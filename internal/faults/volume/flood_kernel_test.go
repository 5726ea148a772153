// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// combinedRuntime knows the containers of two runtimes.
type combinedRuntime [2]*oneContainerRuntime

func (b combinedRuntime) Owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	if found, err := b[0].Owner(ctx, cgroup); err == nil {
		return found, nil
	}
	return b[1].Owner(ctx, cgroup)
}

// floodMounts has a container of another pod bind a volume of its own again and again at long paths, in namespaces of
// its own, and has its driver heal what the host has of it: the copies alone are dead, and each has to be asked.
func (s *volumeScene) floodMounts(mounts, namespaces int) {
	s.t.Helper()
	base := s.t.TempDir()
	s.t.Cleanup(func() { _ = systest.UnmountPath(base, true) })
	server := kerneltest.StartWith(s.t, nil, "serve", base, "evil", "vol2")
	staged, point := s.addVolume("evil-pod", "pvc-evil", base, "vol2")
	groups := s.t.TempDir()
	s.must(sys.NewMount("none", groups, "cgroup2", ""))
	s.t.Cleanup(func() { _ = systest.UnmountPath(groups, true) })
	evil := &oneContainerRuntime{
		group: fmt.Sprintf("kubediag-volume-flood-%d-%d", os.Getpid(), containers.Add(1)),
		of: &cri.Owner{ContainerID: "evil", Container: "evil", PodUID: "evil-pod", PodNamespace: "evil", PodName: "evil", Mounts: []cri.Mount{
			{HostPath: point, ContainerPath: "/data"},
		}},
	}
	group := filepath.Join(groups, evil.group)
	s.must(os.Mkdir(group, 0o755))
	s.t.Cleanup(func() {
		for deadline := time.Now().Add(20 * time.Second); os.Remove(group) != nil && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	})
	a := kerneltest.Flood(s.t, point, mounts, namespaces)
	s.must(os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(a.PID)), 0o644))
	s.Inspector.Runtime = combinedRuntime{s.runtime, evil}
	server.Kill()
	s.must(systest.UnmountPath(base, true))
	kerneltest.StartWith(s.t, nil, "serve", base, "evil", "vol2")
	for _, at := range []string{staged, point} {
		s.must(systest.UnmountPath(at, true))
		s.must(sys.BindMount(filepath.Join(base, "vol2"), at))
	}
}

// TestFloodOfCopies has one pod have so many copies of a dead volume of its own that no process can be asked about all
// of them at once: those of another pod are judged all the same, in less memory than the agent has, and it is said that
// some of the many were not.
func TestFloodOfCopies(t *testing.T) {
	for mounts, want := range map[int]string{
		17_000: "mounts in 1 mount namespaces that have more of the kind that is looked for than there is room for",
		1_000:  `mounts of volumes in container "evil" of pod evil/evil: there are more than 64`,
	} {
		t.Run(strconv.Itoa(mounts), func(t *testing.T) { testFloodOfCopies(t, mounts, want) })
	}
}

func testFloodOfCopies(t *testing.T, mounts int, want string) {
	s := newScene(t, deepDir)
	s.Inspector.Prober.(*probe.Prober).Deadline = 5 * time.Second // others want the processors, too
	s.startContainer()
	s.floodMounts(mounts, 1)
	s.Kill()
	s.Remount("new")
	var survey *volume.Survey
	began := time.Now()
	most := kerneltest.Within(t, func() { survey = s.survey(mountstate.Scope{}) })
	said := strings.Join(survey.Unknown.Sentences(), "\n")
	t.Logf("%s, %d MiB, asked %d: %q", time.Since(began), most>>20, survey.Coverage.Asked, said)
	replaceable, evil := 0, 0
	for _, v := range survey.Broken() {
		for _, c := range v.Copies {
			switch {
			case c.Holder.ContainerID == "evil":
				evil++
			case c.Decision.Replaceable && c.Verdict.Code == fault.DisconnectedFUSE && c.Holder.ContainerID == "c1":
				replaceable++
			}
		}
	}
	if replaceable != 2 || evil > 64 {
		t.Errorf("%d copies of the victim can be replaced, want 2; %d of the other were judged, want 64 at the most", replaceable, evil)
	}
	if !strings.Contains(said, want) {
		t.Errorf("incomplete: %q, want %q", said, want)
	}
}
