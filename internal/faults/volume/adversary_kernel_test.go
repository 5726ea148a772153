// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestReadOnlyIsKept: a process that may mount in a container can put a writable dead mount where the pod has a
// read-only volume. The mount that takes its place must be read-only.
func TestReadOnlyIsKept(t *testing.T) {
	for name, set := range map[string]func(s *volumeScene){
		"by the spec":    func(s *volumeScene) { s.Pod.Spec.Containers[0].VolumeMounts[0].ReadOnly = true },
		"by the runtime": func(s *volumeScene) { s.runtime.of.Mounts[0].ReadOnly = true },
		"not at all":     func(*volumeScene) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, deepDir)
			c := s.startContainer()
			set(s)
			s.Kill()
			s.Remount("new")
			s.repairVolume()
			table, err := mountns.Table(c.PID)
			s.must(err)
			for point, want := range map[string]bool{"/data": name != "not at all", "/sub": false} {
				m, _ := table.Top(point)
				if got := sys.ParseMountAttr(m.Options).Has(sys.AttrReadOnly); got != want {
					t.Errorf("%q has options %q, want read-only %v", point, m.Options, want)
				}
			}
			if got := readInContainer(c.PID, "data/data"); got != "new" {
				t.Errorf("the container reads %q", got)
			}
		})
	}
}

// TestAMountOfTheContainersOwn: a program that serves a file system of its own at the place of its volume, an encrypted
// view of it say, has died. The volume itself is not what belongs there.
func TestAMountOfTheContainersOwn(t *testing.T) {
	s := newScene(t, "dir")
	base := t.TempDir()
	own := kerneltest.FUSE(t, base)
	s.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data"}}
	s.runtime.of = &cri.Owner{Container: "app", PodUID: string(s.Pod.UID), Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: "/data"}}}
	c := s.startProcess(s.Point, "/data", filepath.Join(base, "dir"), "/data")
	own.Kill()
	before := s.MountsOf(c.PID)
	v := s.inspectVolume()
	actions, refusals := s.planOf(v, volume.PlanOptions{})
	if v.Verdict.Code != "" || len(v.Copies) != 1 || len(actions) > 0 {
		t.Errorf("%s, copies %+v, actions %+v", v.Verdict.Code, v.Copies, actions)
	}
	if len(refusals) != 1 || !strings.Contains(refusals[0], "nothing proves that it was ever that volume") {
		t.Errorf("refusals: %q", refusals)
	}
	for _, step := range actions {
		_, err := s.Inspector.Open()(t.Context(), step)
		t.Errorf("%+v: %v", step, err)
	}
	expectSameMounts(t, before, s.MountsOf(c.PID))
}

// TestConnectionOfAHostPath: the pod's spec may name any path of the host, and the mount there belongs to another user.
func TestConnectionOfAHostPath(t *testing.T) {
	s := bareScene(t, "vol1")
	s.Serve("old")
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.Staging}}}}
	s.Stop()
	survey := s.survey(s.ofPod())
	if len(survey.Volumes) != 1 || survey.Volumes[0].Verdict.Code != fault.HungMount {
		t.Fatalf("volumes: %+v", survey.Volumes)
	}
	v := survey.Volumes[0]
	actions, refusals := s.planOf(v, volume.PlanOptions{Abort: true})
	if len(actions) > 0 || !strings.Contains(strings.Join(refusals, "\n"), "is not the kubelet's") {
		t.Errorf("actions %+v, refusals %q", actions, refusals)
	}
	if done, err := s.Inspector.Open()(t.Context(), s.newAction(fault.Abort, v.Findings()[0].Mount)); err == nil {
		t.Errorf("applied: %+v", done)
	}
	signal(t, s.Server.PID, "CONT")
	if _, err := os.Stat(filepath.Join(s.Staging, "vol1")); err != nil {
		t.Errorf("the file system: %v", err)
	}
}

// changingInodeProber makes up another inode number at every answer.
type changingInodeProber struct {
	faults.Prober
	n uint64
}

func (m *changingInodeProber) Ask(ctx context.Context, targets []probe.Target) ([]probe.Answer, error) {
	answers, err := m.Prober.Ask(ctx, targets)
	for i := range answers {
		if answers[i].Stat.Fresh {
			m.n++
			answers[i].Stat.Inode += m.n << 32
		}
	}
	return answers, err
}

// TestInodesThatAreMadeUp: a healthy volume of a server that makes up inode numbers is left alone.
func TestInodesThatAreMadeUp(t *testing.T) {
	s := newScene(t, deepDir)
	c := s.startContainer()
	s.Inspector.Prober = &changingInodeProber{Prober: s.Inspector.Prober}
	before, inside := s.Mounts(), s.MountsOf(c.PID)
	v := s.inspectVolume()
	if v.Broken() {
		t.Errorf("%s %q, copies %+v", v.Verdict.Code, v.Verdict.Reasons, v.Copies)
	}
	survey := s.survey(s.ofPod())
	if !strings.Contains(strings.Join(survey.Coverage.Notes, "\n"), "another inode number every time") {
		t.Errorf("incomplete: %q", survey.Coverage.Notes)
	}
	expectSameMounts(t, before, s.Mounts())
	expectSameMounts(t, inside, s.MountsOf(c.PID))
}

// countingRuntime counts how often the runtime is asked for a container that it has.
type countingRuntime struct {
	volume.Runtime
	n int
}

func (c *countingRuntime) Owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	owner, err := c.Runtime.Owner(ctx, cgroup)
	if err == nil {
		c.n++
	}
	return owner, err
}

// TestTheRuntimeIsAskedOnce: each repair looks at all containers, and a thousand may be made in a row.
func TestTheRuntimeIsAskedOnce(t *testing.T) {
	s, _ := newRemountedScene(t)
	asked := &countingRuntime{Runtime: s.runtime}
	s.Inspector.Runtime = asked
	s.inspectVolume()
	first := asked.n
	if actions, _ := s.repairVolume(); len(actions) != 4 || first == 0 || asked.n-first > 0 {
		t.Errorf("%d steps, and the runtime was asked %d times, then %d times more", len(actions), first, asked.n-first)
	}
}
