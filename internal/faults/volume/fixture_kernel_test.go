// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) {
	volumetest.Main(m, kerneltest.Roles{
		"daemon": kerneltest.HoldPrivately, "look": inspectRole, "leave-spaces": leaveSpaces, "trap": overlayTrapRole, "rooted": fuseRootRole,
	})
}

const (
	driver  = volumetest.Driver
	handle  = volumetest.Handle
	pvName  = volumetest.Volume
	deepDir = "csi/vol1" // the volume's directory in the file system
)

// volumeScene is a volume whose pod has the directory "sub" of it, too, and a runtime that knows one container.
type volumeScene struct {
	*volumetest.Scene
	t       *testing.T
	runtime *oneContainerRuntime
	// groupEnd is the end of the name of the container's control group.
	groupEnd string
}

// oneContainerRuntime knows one container, for every process in the control group.
type oneContainerRuntime struct {
	of    *cri.Owner
	group string
}

func (r *oneContainerRuntime) Owner(_ context.Context, cgroup string) (cri.Owner, error) {
	if r.of == nil || !strings.Contains(cgroup, "/"+r.group) {
		return cri.Owner{}, cri.ErrNotFound
	}
	return *r.of, nil
}

type pods map[string]*corev1.Pod

func (p pods) PodByUID(uid string) *corev1.Pod { return p[uid] }

// newScene has everything in place and well. below is the directory of the volume in its file system.
func newScene(t *testing.T, below string) *volumeScene {
	t.Helper()
	s := bareScene(t, below)
	s.Mount()
	return s
}

// newRemountedScene has the volume mounted again after its server died, and a container with the dead mounts.
func newRemountedScene(t *testing.T) (*volumeScene, *kerneltest.Actor) {
	t.Helper()
	s := newScene(t, deepDir)
	container := s.startContainer()
	s.Kill()
	s.Remount("new")
	return s, container
}

// bareScene has the kubelet's directories alone.
func bareScene(t *testing.T, below string) *volumeScene {
	t.Helper()
	s := &volumeScene{Scene: volumetest.Bare(t), t: t, runtime: &oneContainerRuntime{}}
	s.Dir, s.Others = below, []string{below + "/sub", "other/" + filepath.Base(below)}
	mounts := &s.Pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "claim", MountPath: "/sub", SubPath: "sub"})
	s.Inspector.Runtime, s.Inspector.Pods = s.runtime, pods{string(s.Pod.UID): s.Pod}
	return s
}

func signal(t *testing.T, pid int, name string) {
	t.Helper()
	if out, err := exec.Command("kill", "-"+name, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Errorf("kill -%s %d: %v: %s", name, pid, err, out)
	}
}

// startContainer starts a container that has the volume at /data and its directory "sub" at /sub.
func (s *volumeScene) startContainer() *kerneltest.Actor {
	s.t.Helper()
	sub := s.Scene.Scene.Point(s.Pod, pvName, "app", 1)
	s.Bind(filepath.Join(s.Point, "sub"), sub)
	s.t.Cleanup(func() { _ = systest.UnmountPath(sub, true) })
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: "/data"}, {HostPath: sub, ContainerPath: "/sub"}},
	}
	return s.startProcess(s.Point, "/data", sub, "/sub")
}

// containers counts them.
var containers atomic.Int32

// startProcess starts the process of the container that the runtime knows, with pairs of paths mounted in it.
func (s *volumeScene) startProcess(pairs ...string) *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.Start(s.t, "container", append([]string{s.t.TempDir(), s.makeCgroup()}, pairs...)...)
}

// makeCgroup makes the control group of the container that the runtime knows.
func (s *volumeScene) makeCgroup() string {
	s.t.Helper()
	s.runtime.group = fmt.Sprintf("%032x%032x", os.Getpid(), containers.Add(1)) + s.groupEnd // as the ID of a container
	return kerneltest.ControlGroup(s.t, s.runtime.group)
}

// readInContainer is what a container reads of the volume.
func readInContainer(pid int, name string) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "root", name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// inspectVolume looks at the pod's volume.
func (s *volumeScene) inspectVolume() *volume.Health {
	s.t.Helper()
	survey := s.survey(s.ofPod())
	for _, v := range survey.Volumes {
		if v.Evidence.Name == pvName {
			if len(survey.Unknown.Sentences()) > 0 {
				s.t.Logf("incomplete: %q", survey.Unknown.Sentences())
			}
			return v
		}
	}
	s.t.Fatalf("volumes %+v, want %q", survey.Volumes, pvName)
	return nil
}

// ofPod is the scope of an inspection of the pod.
func (s *volumeScene) ofPod() mountstate.Scope {
	return mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}}
}

// survey is of all volumes of a scope.
func (s *volumeScene) survey(of mountstate.Scope) *volume.Survey {
	s.t.Helper()
	survey, err := s.Inspector.Inspect(s.t.Context(), of)
	s.must(err)
	return survey
}

// planOf is the plan for a volume.
func (s *volumeScene) planOf(v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string) {
	s.t.Helper()
	actions, refusals, err := s.Inspector.Plan(s.t.Context(), v, o)
	s.must(err)
	return actions, refusals
}

// apply does actions, which must not fail.
func (s *volumeScene) apply(actions ...fault.Action) {
	s.t.Helper()
	for _, a := range actions {
		_, err := s.Inspector.Open()(s.t.Context(), a)
		s.must(err)
	}
}

// repairVolume plans, does all of it, and has it verified.
func (s *volumeScene) repairVolume() (actions []fault.Action, refusals []string) {
	s.t.Helper()
	actions, refusals = s.planOf(s.inspectVolume(), volume.PlanOptions{})
	for _, step := range actions {
		if _, err := s.Inspector.Open()(s.t.Context(), step); err != nil {
			s.t.Fatalf("apply %+v: %v", step, err)
		}
	}
	proof, err := s.Inspector.Verify(s.t.Context(), actions)
	s.must(err)
	if !proof.Healed || len(proof.Evidence) != len(actions) {
		s.t.Fatalf("proof = %+v", proof)
	}
	return actions, refusals
}

func (s *volumeScene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
