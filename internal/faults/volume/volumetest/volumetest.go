// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumetest has a volume of a pod as a CSI driver makes it, for the kernel tier of tests: a FUSE file system
// that a daemon serves at the staging path, the directory of the volume bound at the pod's place, the kubelet's records
// of both, and containers that have it. Files, mounts and deaths are real. It is for tests alone. Only the container
// runtime is played.
package volumetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// The name of the volume.
const (
	Driver = "memory.csi.example.com"
	Handle = "handle-1"
	Volume = "pvc-1"
	// OtherUID is the pod of Share.
	OtherUID = "7b6b3f0a-52f5-4d3b-9d0f-0a4b7f5b1c22"
)

// Name is the type of the file system, after "fuse.".
var Name = typeOf(os.Getpid())

// Main is for TestMain. roles are the other roles of the tests.
func Main(m *testing.M, roles ...kerneltest.Roles) {
	subprocess.Main(probe.Job, volume.Job, volume.CommandLinesJob)
	all := kerneltest.Roles{"serve": serve, "container": container, "workload": Attack}
	for _, r := range roles {
		maps.Copy(all, r)
	}
	kerneltest.Main(m, all)
}

// Scene is the volume of the pod default/web with the container app, which mounts it at /data. Everything is well.
type Scene struct {
	*kubelettest.Scene
	// Pods has the pod; a test changes Pod, and calls Pods.Set, as the API server would.
	Pods *kubelettest.Pods
	Pod  *corev1.Pod
	// Staging and Point are where the file system and the directory of the volume are mounted.
	Staging, Point string
	// Dir is the volume's directory in the file system. No other scene has it: what other tests of the machine have
	// mounted meanwhile must not look like a copy.
	Dir       string
	Others    []string // more directories that have a file "data"
	Server    *kerneltest.Actor
	Inspector *volume.Inspector

	t     *testing.T
	owner *cri.Owner
}

// scenes counts those of this process.
var scenes atomic.Int64

// New makes a scene that goes with the test.
func New(t *testing.T) *Scene {
	t.Helper()
	s := Bare(t)
	s.Mount()
	return s
}

// Mount has the volume served and mounted.
func (s *Scene) Mount() {
	s.t.Helper()
	s.Serve("old")
	s.must(sys.BindMount(filepath.Join(s.Staging, s.Dir), s.Point))
}

// Bare is New with the kubelet's directories and records alone.
func Bare(t *testing.T) *Scene {
	t.Helper()
	scene := &Scene{Scene: kubelettest.New(t), Pods: &kubelettest.Pods{}, Pod: kubelettest.NewPod(), t: t}
	scene.Dir = fmt.Sprintf("volumes/vol-%d-%d", os.Getpid(), scenes.Add(1))
	scene.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data"}}
	scene.Pods.Set(scene.Pod)
	scene.Staging = scene.Node.StagingPoints(Driver, Handle, Volume)[0]
	scene.Point = scene.place(scene.Staging, scene.Node.VolumePoint(kubelet.Volume{PodUID: string(scene.Pod.UID),
		Plugin: kubelet.CSIPlugin, Name: Volume}))
	runner := &subprocess.Runner{}
	scene.Inspector = &volume.Inspector{
		Kubelet: scene.Node, Prober: &probe.Prober{Deadline: kerneltest.Patience(time.Second), Runner: runner}, Runtime: scene, Pods: scene,
		Runner: runner, Silence: 300 * time.Millisecond,
	}
	return scene
}

// place makes points that are unmounted with the test, with a record of the volume beside each, and gives the last.
func (s *Scene) place(points ...string) string {
	s.t.Helper()
	for _, point := range points {
		s.must(os.MkdirAll(point, 0o755))
		s.t.Cleanup(func() {
			for systest.UnmountPath(point, true) == nil {
			}
		})
		s.Record(point, kubelet.VolumeRecord{Driver: Driver, Handle: Handle, PersistentVolume: Volume})
	}
	return points[len(points)-1]
}

// Record writes what the kubelet knows about the volume at a point.
func (s *Scene) Record(point string, r kubelet.VolumeRecord) {
	s.t.Helper()
	text, err := json.Marshal(r)
	s.must(err)
	s.must(os.WriteFile(kubelet.VolumeRecordPath(point), text, 0o600))
}

// Share mounts the volume for another pod, too, and gives the place.
func (s *Scene) Share() string {
	s.t.Helper()
	point := s.place(s.Node.VolumePoint(kubelet.Volume{PodUID: OtherUID, Plugin: kubelet.CSIPlugin, Name: Volume}))
	s.must(sys.BindMount(filepath.Join(s.Staging, s.Dir), point))
	return point
}

// Kill ends the daemon.
func (s *Scene) Kill() { s.Server.Kill() }

// Stop has the daemon answer no more, until the test ends.
func (s *Scene) Stop() {
	s.t.Helper()
	if out, err := exec.Command("kill", "-STOP", strconv.Itoa(s.Server.PID)).CombinedOutput(); err != nil {
		s.t.Fatalf("stop the daemon: %v: %s", err, out)
	}
	s.t.Cleanup(s.Server.Kill) // SIGKILL ends one that is stopped, too
	kerneltest.Await(s.t, "every thread of the daemon is stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.Server.PID))
		s.must(err)
		return !slices.ContainsFunc(threads, func(name string) bool {
			stat, err := os.ReadFile(name)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
}

// Forget has the daemon know no directory any more, as a server whose directories were made again: every handle is
// stale.
func (s *Scene) Forget() {
	s.t.Helper()
	s.Fail(sys.ESTALE)
}

// Fail has the daemon answer everything with an error.
func (s *Scene) Fail(errno sys.Errno) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.Staging, fail+strconv.Itoa(int(errno)))); !errors.Is(err, errno) {
		s.t.Fatalf("the daemon answers: %v, want %v", err, errno)
	}
}

// Delete has another client delete a directory of the volume, and make another one of its name if again is true. From then
// on the daemon answers for the old one with the error; 0: as for a directory that is open and has no link.
func (s *Scene) Delete(name string, answer sys.Errno, again bool) {
	s.t.Helper()
	command := fmt.Sprintf("%s%s:%d:%t", deletePrefix, name, int(answer), again)
	if _, err := os.Lstat(filepath.Join(s.Staging, s.Dir, command)); !errors.Is(err, sys.ENOENT) {
		s.t.Fatalf("%s: %v, want ENOENT", command, err)
	}
}

// Remount has the driver do what it does after its daemon has died: the file "data" of the volume says content then.
func (s *Scene) Remount(content string) {
	s.t.Helper()
	s.Unstage()
	s.Serve(content)
}

// Unstage unmounts the file system from the staging path.
func (s *Scene) Unstage() {
	s.t.Helper()
	s.must(systest.UnmountPath(s.Staging, true))
}

// Serve has a daemon mount the file system at the staging path.
func (s *Scene) Serve(content string) {
	s.t.Helper()
	s.Server = kerneltest.StartWith(s.t, nil, "serve", append([]string{s.Staging, content, s.Dir}, s.Others...)...)
}

// Elsewhere has another client change the file system: mv FROM TO, make NAME CONTENT, link NAME, which leads to ../../other, link NAME TO, or
// rm NAME. A path from its root has dots for slashes.
func (s *Scene) Elsewhere(command ...string) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.Staging, commandPrefix+strings.Join(command, ":"))); !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
}

// Start starts a container of the pod that has the volume at /data.
func (s *Scene) Start() *kerneltest.Actor {
	s.t.Helper()
	s.Own("/data")
	return kerneltest.Start(s.t, "container", s.t.TempDir(), "", s.Point, "/data")
}

// Own has the runtime say that every process is of the pod's container, which has the volume at a path.
func (s *Scene) Own(at string) {
	s.owner = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: at}},
	}
}

// Read is what the container reads of the volume, or the error.
func (s *Scene) Read(c *kerneltest.Actor) string {
	return content(filepath.Join("/proc", strconv.Itoa(c.PID), "root/data/data"))
}

// ReadHost is what is read at a place of the host, or the error.
func (s *Scene) ReadHost(point string) string { return content(filepath.Join(point, "data")) }

func content(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Owner takes every process for one of the container that was started last.
func (s *Scene) Owner(context.Context, string) (cri.Owner, error) {
	if s.owner == nil {
		return cri.Owner{}, cri.ErrNotFound
	}
	return *s.owner, nil
}

// PodByUID returns the pod.
func (s *Scene) PodByUID(uid string) *corev1.Pod {
	if uid != string(s.Pod.UID) {
		return nil
	}
	return s.Pod
}

func (s *Scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// container is a role: a process in control group args[1], if that is not empty, with a root directory of its own, args[0], in which the pairs of
// paths after that are mounted.
func container(args []string, ready func(string)) error {
	root := args[0]
	if args[1] != "" {
		if err := os.WriteFile(filepath.Join(args[1], "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	if err := errors.Join(sys.SetPropagation("/", sys.Private, true), sys.NewMount("root", root, "tmpfs", "")); err != nil {
		return err
	}
	for pair := range slices.Chunk(args[2:], 2) {
		at := filepath.Join(root, pair[1])
		if err := errors.Join(os.MkdirAll(at, 0o755), sys.BindMount(pair[0], at)); err != nil {
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
