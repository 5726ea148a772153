// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) {
	subprocess.Main(probe.Job, volume.Job, volume.CommandLinesJob)
	kerneltest.Main(m, kerneltest.Roles{
		"serve": serveRole, "container": container, "daemon": kerneltest.HoldPrivately, "workload": volumetest.Attack, "look": inspectRole, "leave-spaces": leaveSpaces, "trap": overlayTrapRole, "rooted": fuseRootRole,
	})
}

const (
	driver  = "memory.csi.example.com"
	handle  = "handle-1"
	pvName  = "pvc-1"
	deepDir = "csi/vol1" // the volume's directory in the file system
)

// volumeScene is a volume of a pod as a CSI driver has it: a FUSE file system at the staging path, and a directory of
// it at the pod's.
type volumeScene struct {
	*kubelettest.Scene
	t       *testing.T
	pod     *corev1.Pod
	g, p    string
	below   string
	server  *kerneltest.Actor
	runtime *oneContainerRuntime
	// groupEnd is the end of the name of the container's control group.
	groupEnd string
	i        *volume.Inspector
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
	s.startDaemon("old")
	s.must(sys.BindMount(filepath.Join(s.g, s.below), s.p))
	return s
}

// bareScene has the kubelet's directories alone.
func bareScene(t *testing.T, below string) *volumeScene {
	t.Helper()
	s := &volumeScene{Scene: kubelettest.New(t), t: t, pod: kubelettest.NewPod(), below: below, runtime: &oneContainerRuntime{}}
	s.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "claim", MountPath: "/data"}, {Name: "claim", MountPath: "/sub", SubPath: "sub"},
	}
	s.g = s.Node.StagingPoints(driver, handle, pvName)[0]
	s.p = s.Node.VolumePoint(kubelet.Volume{PodUID: string(s.pod.UID), Plugin: kubelet.CSIPlugin, Name: pvName})
	for _, dir := range []string{s.g, s.p} {
		s.must(os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			for systest.UnmountPath(dir, true) == nil {
			}
		})
		s.writeRecord(dir, kubelet.VolumeRecord{Driver: driver, Handle: handle, PersistentVolume: pvName})
	}
	runner := &subprocess.Runner{}
	s.i = &volume.Inspector{
		Kubelet: s.Node, Prober: &probe.Prober{Deadline: probeDeadline, Runner: runner}, Runtime: s.runtime,
		Pods: pods{string(s.pod.UID): s.pod}, Runner: runner, Silence: 300 * time.Millisecond,
	}
	return s
}

// writeRecord writes what the kubelet knows about the volume at a point.
func (s *volumeScene) writeRecord(point string, r kubelet.VolumeRecord) {
	s.t.Helper()
	text, err := json.Marshal(r)
	s.must(err)
	s.must(os.WriteFile(kubelet.VolumeRecordPath(point), text, 0o600))
}

// startDaemon has a daemon mount the file system at the staging path.
func (s *volumeScene) startDaemon(content string) {
	s.t.Helper()
	s.server = kerneltest.StartWith(s.t, nil, "serve", s.g, content, s.below, s.below+"/sub", "other/"+filepath.Base(s.below))
}

// remount has the driver do what it does after its daemon has died.
func (s *volumeScene) remount(content string) {
	s.t.Helper()
	s.must(systest.UnmountPath(s.g, true))
	s.startDaemon(content)
}

// elsewhere does to the file system what another client does.
func (s *volumeScene) elsewhere(args ...string) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.g, "cmd:"+strings.Join(args, ":"))); !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
}

// stopDaemon has the daemon answer no more, until the test ends.
func (s *volumeScene) stopDaemon() {
	s.t.Helper()
	signal(s.t, s.server.PID, "STOP")
	server := s.server
	s.t.Cleanup(server.Kill) // SIGKILL ends one that is stopped, too
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
	sub := s.Point(s.pod, pvName, "app", 1)
	s.Bind(filepath.Join(s.p, "sub"), sub)
	s.t.Cleanup(func() { _ = systest.UnmountPath(sub, true) })
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.pod.UID), PodNamespace: s.pod.Namespace, PodName: s.pod.Name,
		Mounts: []cri.Mount{{HostPath: s.p, ContainerPath: "/data"}, {HostPath: sub, ContainerPath: "/sub"}},
	}
	return s.startProcess(s.p, "/data", sub, "/sub")
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
	groups := s.t.TempDir()
	s.must(sys.NewMount("none", groups, "cgroup2", ""))
	s.t.Cleanup(func() { _ = systest.UnmountPath(groups, true) })
	s.runtime.group = fmt.Sprintf("%032x%032x", os.Getpid(), containers.Add(1)) + s.groupEnd // as the ID of a container
	group := filepath.Join(groups, s.runtime.group)
	s.must(os.Mkdir(group, 0o755))
	s.t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); os.Remove(group) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				left, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
				s.t.Errorf("processes %q are left of the container", left)
				return
			}
		}
	})
	return group
}

// container is a role: a process in control group args[1] with a root directory of its own, in which the pairs of paths
// after that are mounted.
func container(args []string, ready func(string)) error {
	root := args[0]
	if err := os.WriteFile(filepath.Join(args[1], "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	if err := sys.NewMount("root", root, "tmpfs", ""); err != nil {
		return err
	}
	for i := 2; i+1 < len(args); i += 2 {
		at := filepath.Join(root, args[i+1])
		if err := errors.Join(os.MkdirAll(at, 0o755), sys.BindMount(args[i], at)); err != nil {
			return err
		}
	}
	if err := systest.PivotRoot(root); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
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
	survey, err := s.i.Inspect(s.t.Context(), mountstate.Scope{PodUIDs: []string{string(s.pod.UID)}})
	s.must(err)
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

// repairVolume plans, does all of it, and has it verified.
func (s *volumeScene) repairVolume() (actions []fault.Action, refusals []string) {
	s.t.Helper()
	actions, refusals, err := s.i.Plan(s.t.Context(), s.inspectVolume(), volume.PlanOptions{})
	s.must(err)
	for _, step := range actions {
		if _, err := s.i.Open()(s.t.Context(), step); err != nil {
			s.t.Fatalf("apply %+v: %v", step, err)
		}
	}
	proof, err := s.i.Verify(s.t.Context(), actions)
	s.must(err)
	if !proof.Healed || len(proof.Evidence) != len(actions) {
		s.t.Fatalf("proof = %+v", proof)
	}
	return actions, refusals
}

// mountKeysOf lists the mounts of a process by what identifies them.
func mountKeysOf(t *testing.T, pid int) map[string]bool {
	t.Helper()
	table, err := mountns.Table(pid)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, m := range table.Mounts() {
		all[fmt.Sprintf("%d on %d at %q", m.ID, m.Parent, m.Point)] = true
	}
	return all
}

func (s *volumeScene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
