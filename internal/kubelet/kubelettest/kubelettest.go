// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelettest plays a kubelet of before 1.19 for the kernel tier of tests: it makes the directories of a pod,
// renews volumes and binds subPaths as that kubelet does, with real files and real mounts, and mounts the binds as a
// container runtime would. It is for tests alone. It starts no containers.
//
// It rests on kubernetes/pkg/volume/util/atomic_writer.go and subpath/subpath_linux.go.
package kubelettest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

//go:embed walkthrough-pod.json
var walkthroughPod []byte

// WalkthroughPod is a real pod that met kubernetes#68211, as its API server told of it.
func WalkthroughPod(t testing.TB) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(walkthroughPod, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// Pods is a source with one pod, which tests change as the API server would. The zero value has none.
type Pods struct {
	mu  sync.Mutex
	pod *corev1.Pod
}

// Set replaces the pod; nil removes it.
func (p *Pods) Set(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pod = pod.DeepCopy()
}

// Pod returns the pod.
func (p *Pods) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pod == nil || p.pod.Namespace != namespace || p.pod.Name != name {
		return nil, fmt.Errorf("%w: %s/%s", kubelet.ErrPodNotFound, namespace, name)
	}
	return p.pod.DeepCopy(), nil
}

// Scene is the root directory of a kubelet on a file system of its own.
type Scene struct {
	Root string
	Node *kubelet.Node

	t       testing.TB
	scratch string
	program string
	since   time.Time
	updates int
}

// New makes a scene in the caller's mount namespace, which must be private. It goes with the test.
func New(t testing.TB) *Scene {
	t.Helper()
	return newScene(t, func(dir string) error { return mount.Tmpfs(dir, 8<<20) })
}

// NewOnDisk is New on the file system of temporary files. A tmpfs does not give the birth time of a file on every
// kernel.
func NewOnDisk(t testing.TB) *Scene {
	t.Helper()
	return newScene(t, func(dir string) error { return sys.BindMount(dir, dir) })
}

// newScene makes the root on the mount that mounted makes at a directory.
func newScene(t testing.TB, mounted func(dir string) error) *Scene {
	t.Helper()
	dir := t.TempDir()
	// mountinfo escapes the space.
	s := &Scene{t: t, Root: filepath.Join(dir, "kube let é"), scratch: filepath.Join(dir, "container")}
	s.must(mounted(dir))
	t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
	s.must(os.MkdirAll(filepath.Join(s.Root, "pods"), 0o755))
	s.must(os.MkdirAll(s.scratch, 0o755))
	s.Reopen()
	return s
}

// Reopen resolves the root again, after a test has put links in its way.
func (s *Scene) Reopen() {
	s.t.Helper()
	n, err := kubelet.Local(s.Root)
	s.must(err)
	n.Program, n.Since = s.program, s.since
	s.Node = n
}

// Renews gives the kubelet the texts of a program that renews binds by itself, or of a program that keeps them. Until then
// that is not known. Bind does not change with it.
func (s *Scene) Renews(renews bool) {
	s.t.Helper()
	text := "\x7fELF Skipping bind-mounting subpath %s: already mounted"
	if renews {
		// Put together here, so that a test that stands in for a kubelet does not have it in its own program.
		text += strings.Join([]string{"error", "checking", "subpath", "mount", "info"}, " ")
	}
	s.be(text)
}

// TriesOnce gives the kubelet, which has started at that time, the texts of a program that tries once to finish with
// volumes that it finds, or of a program that goes on. Until then that is not known.
func (s *Scene) TriesOnce(once bool, since time.Time) {
	s.t.Helper()
	text := "\x7fELF " + strings.Join([]string{"volume:", "%q", "is", "not", "mounted"}, " ")
	if !once {
		text += strings.Join([]string{"Volume", "is", "marked", "as", "uncertain", "and", "added", "into", "the", "actual", "state"}, " ")
	}
	s.since = since
	s.be(text)
}

// be has the kubelet have that program.
func (s *Scene) be(text string) {
	s.t.Helper()
	s.program = filepath.Join(s.scratch, "kubelet")
	s.must(os.WriteFile(s.program, []byte(text), 0o755))
	s.Reopen()
}

// Plugins by the kind of volume, for those whose content the kubelet keeps in the pod's directory.
const (
	ConfigMap   = "kubernetes.io/configmap"
	Secret      = "kubernetes.io/secret"
	Projected   = "kubernetes.io/projected"
	DownwardAPI = "kubernetes.io/downward-api"
	EmptyDir    = "kubernetes.io/empty-dir"
)

// Volume is the directory of a volume; it is made where it is not there.
func (s *Scene) Volume(pod *corev1.Pod, plugin, name string) string {
	s.t.Helper()
	dir := s.Node.VolumeDir(string(pod.UID), plugin, name)
	s.must(os.MkdirAll(dir, 0o755))
	return dir
}

// Update writes a volume again as the kubelet's atomic writer does: a directory with a new name, a link ..data to it that
// is renamed into place, links to its files, and the old directory removed. It returns the new directory.
func (s *Scene) Update(pod *corev1.Pod, plugin, name string, files map[string]string) string {
	s.t.Helper()
	dir := s.Volume(pod, plugin, name)
	s.updates++
	version := "..2021_06_02_06_01_21." + strconv.Itoa(s.updates)
	s.must(os.Mkdir(filepath.Join(dir, version), 0o755))
	for file, content := range files {
		s.must(os.WriteFile(filepath.Join(dir, version, file), []byte(content), 0o644))
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); !errors.Is(err, os.ErrExist) {
			s.must(err)
		}
	}
	data := filepath.Join(dir, "..data")
	old, _ := os.Readlink(data) // none at first
	s.must(os.Symlink(version, data+"_tmp"))
	s.must(os.Rename(data+"_tmp", data))
	if old != "" {
		s.must(os.RemoveAll(filepath.Join(dir, old)))
	}
	return filepath.Join(dir, version)
}

// Point is where the subPath of a container is bound. volume is the kubelet's name of it.
func (s *Scene) Point(pod *corev1.Pod, volume, container string, index int) string {
	return s.Node.SubPathPoint(kubelet.SubPath{PodUID: string(pod.UID), Volume: volume, Container: container, Index: index})
}

// Bind binds source at point, as the kubelet does for the start of a container: it leaves a mount there alone.
func (s *Scene) Bind(source, point string) {
	s.t.Helper()
	if _, err := mount.Inspect(point); err == nil {
		return
	}
	s.Stack(source, point)
}

// Stack binds source at point whatever is there.
func (s *Scene) Stack(source, point string) {
	s.t.Helper()
	resolved, err := filepath.EvalSymlinks(source)
	s.must(err)
	info, err := os.Stat(resolved)
	s.must(err)
	s.must(os.MkdirAll(filepath.Dir(point), 0o755))
	if info.IsDir() {
		s.must(os.MkdirAll(point, 0o755))
	} else if _, err := os.Lstat(point); errors.Is(err, os.ErrNotExist) {
		s.must(os.WriteFile(point, nil, 0o644))
	}
	s.must(mount.Bind(resolved, point))
}

// Start mounts a bind as a container runtime does at first, and returns the error with which the container would not start.
func (s *Scene) Start(point string) error {
	s.t.Helper()
	target := filepath.Join(s.scratch, "target")
	info, err := os.Lstat(point)
	s.must(err)
	if info.IsDir() {
		s.must(os.MkdirAll(target, 0o755))
	} else {
		s.must(os.WriteFile(target, nil, 0o644))
	}
	defer os.Remove(target)
	if err := mount.Bind(point, target); err != nil {
		return err
	}
	return systest.UnmountPath(target, true)
}

// Mounts is every mount of the namespace by its ids and its point, to compare before and after.
func (s *Scene) Mounts() map[string]bool {
	s.t.Helper()
	return s.MountsOf(s.Node.PID)
}

// MountsOf is Mounts of the namespace of a process; 0: the caller's.
func (s *Scene) MountsOf(pid int) map[string]bool {
	s.t.Helper()
	table, err := mountns.Table(pid)
	s.must(err)
	all := map[string]bool{}
	for _, m := range table.Mounts() {
		all[fmt.Sprintf("%d on %d at %q", m.ID, m.Parent, m.Point)] = true
	}
	return all
}

func (s *Scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
