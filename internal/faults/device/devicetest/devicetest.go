// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package devicetest has a kubelet mount a real device for a pod, and containers keep copies of these mounts, for the
// kernel tier of tests: a loop device with ext4 on it, the kubelet's directories, and processes with mount namespaces
// and root directories of their own. It is for tests alone. Only the container runtime is played.
package devicetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// The names of the volume and its pod. The pod is gone.
const (
	Volume = "pvc-9984bdab-9c79-11e9-b8ba-fa163ed7c802"
	PodUID = "0d2a2ae4-5a0c-4f0f-8f6c-7a3c3f7c1d11"
)

// Scene is a device that a kubelet has mounted for a pod.
type Scene struct {
	*kubelettest.Scene
	// Device is the loop device; Global and Mount are where the kubelet has it mounted, below its root.
	Device        blockdev.Device
	Global, Mount string
	Image         string // the file behind it
	FSType        string
	Runtime       *Runtime
	Pods          *kubelettest.Pods // has the exporter's pod
	Inspector     *device.Inspector

	t *testing.T
}

// Runtime is a container runtime that takes every process for one of the same container.
type Runtime struct {
	Of     *cri.Owner // nil: none is in a container
	Ready  []cri.Sandbox
	Broken error
}

// Owner returns the container.
func (r *Runtime) Owner(context.Context, string) (cri.Owner, error) {
	switch {
	case r.Broken != nil:
		return cri.Owner{}, r.Broken
	case r.Of == nil:
		return cri.Owner{}, cri.ErrNotFound
	}
	return *r.Of, nil
}

// Sandboxes returns those that were set.
func (r *Runtime) Sandboxes(context.Context) ([]cri.Sandbox, error) { return r.Ready, r.Broken }

// New makes a scene with a loop device mounted, and has it go with the test. image is where the file behind it is made,
// relative to the kubelet's root; empty: elsewhere.
func New(t *testing.T, image string) *Scene {
	t.Helper()
	s := begin(t)
	s.Image = filepath.Join(t.TempDir(), "image")
	if image != "" {
		s.Image = filepath.Join(s.Root, image)
	}
	dev := loop(t, s.Image, 4)
	run(t, "mkfs.ext4", "-q", dev)
	s.prepare(dev, "ext4")
	return s
}

// loop makes a file of so many megabytes and a loop device over it, which goes with the test.
func loop(t *testing.T, image string, megabytes int64) (node string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, megabytes<<20)); err != nil {
		t.Fatal(err)
	}
	node = Attach(t, image)
	t.Cleanup(func() { release(t, node, image) })
	return node
}

// NewZram is New with a zram device, which the kernel refuses to reset while it is mounted anywhere.
func NewZram(t *testing.T) *Scene {
	t.Helper()
	const control = "/sys/class/zram-control/"
	id, err := os.ReadFile(control + "hot_add")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("kernel lacks zram")
	}
	scene := begin(t)
	scene.must(err)
	name := "zram" + strings.TrimSpace(string(id))
	t.Cleanup(func() {
		if err := untilDone(func() error { return os.WriteFile(control+"hot_remove", id, 0) }); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	})
	scene.must(os.WriteFile("/sys/block/"+name+"/disksize", []byte("16M"), 0))
	run(t, "mkfs.ext4", "-q", "/dev/"+name)
	scene.prepare("/dev/"+name, "ext4")
	return scene
}

func begin(t *testing.T) *Scene {
	t.Helper()
	s := &Scene{Scene: kubelettest.New(t), t: t, Runtime: &Runtime{}, Pods: &kubelettest.Pods{}}
	s.Pods.Set(exporterPod())
	runner := &subprocess.Runner{}
	s.Inspector = &device.Inspector{
		Kubelet: s.Node, Finder: &devholder.Finder{Runner: runner}, Runtime: s.Runtime, Pods: s.Pods, Runner: runner,
	}
	return s
}

// prepare has the kubelet mount a device.
func (s *Scene) prepare(dev, fsType string) {
	s.t.Helper()
	s.FSType = fsType
	var err error
	s.Device, err = blockdev.Sys{}.Resolve(dev)
	s.must(err)
	s.makePlaces()
	s.MountOnHost()
}

// makePlaces makes the directories that the kubelet mounts on. Their mounts go with the test.
func (s *Scene) makePlaces() {
	s.t.Helper()
	s.Global = s.globalMount(Volume)
	s.Mount = filepath.Join(s.Node.PodDir(PodUID), "volumes/kubernetes.io~csi", Volume, "mount")
	for _, dir := range []string{s.Global, s.Mount} {
		s.must(os.MkdirAll(dir, 0o755))
	}
	s.t.Cleanup(func() { _, _ = systest.UnmountPath(s.Mount, true), systest.UnmountPath(s.Global, true) })
}

// NewOnNoDevice is New with a file system that is on no device: mounted mounts it at a directory. The kubelet mounts it once.
func NewOnNoDevice(t *testing.T, mounted func(dir string)) *Scene {
	t.Helper()
	s := begin(t)
	s.makePlaces()
	mounted(s.Global)
	s.must(sys.BindMount(s.Global, s.Mount))
	table, err := mountns.Table(0)
	s.must(err)
	m, _ := table.Top(s.Global)
	s.FSType = m.FSType
	s.Device, err = s.Inspector.Finder.DeviceOf(m)
	s.must(err)
	return s
}

// MountOnHost has the kubelet mount the device.
func (s *Scene) MountOnHost() {
	s.t.Helper()
	s.must(sys.NewMount(s.Device.Node(), s.Global, s.FSType, ""))
	s.must(sys.BindMount(s.Global, s.Mount))
}

// UnmountOnHost has the kubelet unmount it.
func (s *Scene) UnmountOnHost() {
	s.t.Helper()
	s.must(systest.UnmountPath(s.Mount, false))
	s.must(systest.UnmountPath(s.Global, false))
}

// Exporter is a runtime's answer about a container of a monitoring exporter.
func Exporter() *cri.Owner {
	return &cri.Owner{
		ContainerID: strings.Repeat("a1", 32), Container: "node-exporter", Created: time.Unix(1562550374, 0),
		PodUID: "exporter-uid", PodNamespace: "monitoring", PodName: "node-exporter-x7k2p",
		Mounts: []cri.Mount{{HostPath: "/", ContainerPath: "/host", ReadOnly: true, Propagation: cri.PropagationNone}},
	}
}

func exporterPod() *corev1.Pod {
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "monitoring", Name: "node-exporter-x7k2p", UID: "exporter-uid",
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "node-exporter", Controller: &controller}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "node-exporter", VolumeMounts: []corev1.VolumeMount{{Name: "root", MountPath: "/host", ReadOnly: true}},
		}}},
	}
}

// Left is the case of the scene's device among those that are left behind; nil if it is not.
func (s *Scene) Left() *device.Usage {
	s.t.Helper()
	cases, _, err := s.Inspector.FindAbandoned(s.t.Context())
	s.must(err)
	for _, c := range cases {
		if c.Device.Number == s.Device.Number {
			return c
		}
	}
	return nil
}

// Container starts the process of a container with a root directory of its own, which has what mode says:
//
//	exporter             all mounts of the host at /host, as a hostPath volume of / has them
//	user PATH            the same, and PATH of the host open
//	shared               the same, in a peer group
//	overlaid DIRECTORY   the same as exporter, at /over/dir, which is "dir" of an overlay of the host's directory
//	volume PATH          the host's PATH alone, at /data
//	own DEVICE           nothing of the host's, and has mounted the device at /data
func (s *Scene) Container(mode string, args ...string) *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.Start(s.t, "device container", append([]string{s.t.TempDir(), mode}, args...)...)
}

// Daemon starts a process with a private copy of the host's mounts.
func (s *Scene) Daemon() *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.Start(s.t, "daemon")
}

// Orphan starts a process that keeps a mount namespace open that no process is in.
func (s *Scene) Orphan() *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.StartWith(s.t, nil, "orphan")
}

// Leak has a process keep a file of the device open whose mount is detached.
func (s *Scene) Leak() *kerneltest.Actor {
	s.t.Helper()
	return kerneltest.Start(s.t, "leak", s.Global, s.Mount)
}

// Busy asks the kernel.
func (s *Scene) Busy() bool {
	s.t.Helper()
	busy, err := blockdev.Sys{}.Busy(s.Device)
	s.must(err)
	return busy
}

func (s *Scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// release frees the loop device, if it is that of the test still.
func release(t *testing.T, dev, image string) {
	d, err := blockdev.Sys{}.Resolve(dev)
	if err != nil {
		t.Error(err)
		return
	}
	err = untilDone(func() error {
		if b, err := (blockdev.Sys{}).Backing(d); err == nil && strings.TrimSuffix(b.File, " (deleted)") == image {
			return blockdev.Sys{}.Detach(context.Background(), d)
		}
		return nil // nothing is behind it any more, or a file of another owner
	})
	if err != nil {
		t.Errorf("%s is still held: %v", dev, err)
	}
}

// untilDone tries for three seconds, and returns the last error: a device is busy until the processes of the test have ended, and the
// kernel frees it some time after the last close.
func untilDone(try func() error) (err error) {
	for range 300 {
		if err = try(); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// run runs a program of the machine and gives what it writes.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := runProgram(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func runProgram(name string, args ...string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		out, err := exec.Command(file, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("run %s %q: %w: %s", file, args, err, out)
		}
		return strings.TrimSpace(string(out)), err
	}
	return "", fmt.Errorf("run %q: %w", name, os.ErrNotExist)
}
