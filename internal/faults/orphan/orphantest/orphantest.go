// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package orphantest makes what a pod leaves behind when its node was reset: the kubelet's directories with real files,
// and processes with mount namespaces of their own that have something of them mounted. It is for tests alone. Only the
// API server and the container runtime are played.
package orphantest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// UIDs of a pod that is gone, of another, and of one that lives.
const (
	Gone  = "0d2a2ae4-5a0c-4f0f-8f6c-7a3c3f7c1d11"
	Other = "1d2a2ae4-5a0c-4f0f-8f6c-7a3c3f7c1d12"
	Live  = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
)

// Volume is the CSI volume of the pods that are gone, and VolumeRecord what the kubelet has noted of it.
const (
	Volume       = "pvc-9984bdab-9c79-11e9-b8ba-fa163ed7c802"
	VolumeRecord = `{"attachmentID":"csi-1","driverName":"fuse.csi.example.com","nodeName":"n","specVolID":"` + Volume +
		`","volumeHandle":"handle-1","volumeLifecycleMode":"Persistent"}` + "\n"
)

// Server plays the API server, by metadata of pods.
type Server struct {
	Pods   []metav1.ObjectMeta
	Broken error
	Asked  int // how often
}

// PodsNow returns the pods that were set.
func (s *Server) PodsNow(context.Context) ([]metav1.ObjectMeta, error) {
	s.Asked++
	return s.Pods, s.Broken
}

// Knows adds a pod.
func (s *Server) Knows(uid string) {
	s.Pods = append(s.Pods, metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: "web"})
}

// Cache plays a cache of the API server, by UIDs.
type Cache map[string]bool

// Knows reports whether the UID was set.
func (c Cache) Knows(uid string) bool { return c[uid] }

// Runtime plays the container runtime.
type Runtime struct {
	All    []cri.Sandbox
	Broken error
	// Containers are by UID of their pod; NoContainers is why they are not told.
	Containers   map[string][]cri.Container
	NoContainers error
}

// PodRecords returns those that were set.
func (r *Runtime) PodRecords(_ context.Context, uid string) ([]cri.Container, error) {
	return r.Containers[uid], r.NoContainers
}

// Sandboxes returns those that were set.
func (r *Runtime) Sandboxes(context.Context) ([]cri.Sandbox, error) { return r.All, r.Broken }

// Scene is the root of a kubelet that tries once to finish with what it finds, and was started half an hour later; with a pod
// that lives; an hour later.
type Scene struct {
	*kubelettest.Scene
	Server    *Server
	Runtime   *Runtime
	Inspector *orphan.Inspector

	t *testing.T
}

// New makes a scene that goes with the test.
func New(t *testing.T) *Scene {
	t.Helper()
	s := &Scene{Scene: kubelettest.NewOnDisk(t), Server: &Server{}, Runtime: &Runtime{}, t: t}
	s.Kind(true, time.Now().Add(30*time.Minute))
	s.Server.Knows(Live)
	s.Runtime.All = []cri.Sandbox{{PodUID: Live, Ready: true}}
	s.Inspector = &orphan.Inspector{
		Kubelet: s.Node, Pods: s.Server, Runtime: s.Runtime,
		Now: func() time.Time { return time.Now().Add(time.Hour) },
	}
	s.Dir(Live, "volumes/kubernetes.io~csi/"+Volume+"/mount")
	return s
}

// Kind has the kubelet be one that tries once to finish with what it finds, or one that goes on, and that was started at that
// time.
func (s *Scene) Kind(once bool, since time.Time) {
	s.t.Helper()
	s.TriesOnce(once, since)
	if s.Inspector != nil {
		s.Inspector.Kubelet = s.Node
	}
}

// Leave has a pod leave behind what a node has after a reset: a CSI volume with its record, an empty emptyDir, a subPath,
// and the kubelet's own files.
func (s *Scene) Leave(uid string) {
	s.t.Helper()
	s.Dir(uid, "volumes/kubernetes.io~csi/"+Volume+"/mount")
	s.File(uid, "volumes/kubernetes.io~csi/"+Volume+"/vol_data.json", VolumeRecord)
	s.Dir(uid, "volumes/kubernetes.io~empty-dir/cache")
	s.File(uid, "volume-subpaths/config/app/0", "")
	s.File(uid, "etc-hosts", "127.0.0.1 localhost\n")
	s.File(uid, "containers/app/0a1b2c3d", "")
	s.File(uid, "plugins/kubernetes.io~empty-dir/cache/ready", "")
}

// KeyTime is the name of the directory that WriteKeys puts the keys in.
const KeyTime = "..2026_11_25_21_33_17.1234567890"

// WriteKeys fills the directory of a ConfigMap, Secret, projected or downwardAPI volume as the kubelet does: a key, and one
// whose path has two parts.
func WriteKeys(dir string) error {
	return errors.Join(
		os.MkdirAll(filepath.Join(dir, KeyTime, "dir"), 0o755),
		os.WriteFile(filepath.Join(dir, KeyTime, "key"), []byte("first"), 0o644),
		os.WriteFile(filepath.Join(dir, KeyTime, "dir/key"), []byte("second"), 0o644),
		os.Symlink(KeyTime, filepath.Join(dir, "..data")),
		os.Symlink("..data/key", filepath.Join(dir, "key")),
		os.Symlink("..data/dir", filepath.Join(dir, "dir")),
	)
}

// Path is a path in the directory of a pod.
func (s *Scene) Path(uid, rel string) string { return filepath.Join(s.Node.PodDir(uid), rel) }

// Dir makes a directory in that of a pod.
func (s *Scene) Dir(uid, rel string) string {
	s.t.Helper()
	s.Must(os.MkdirAll(s.Path(uid, rel), 0o755))
	return s.Path(uid, rel)
}

// File writes a file in the directory of a pod.
func (s *Scene) File(uid, rel, content string) string {
	s.t.Helper()
	s.Dir(uid, filepath.Dir(rel))
	s.Must(os.WriteFile(s.Path(uid, rel), []byte(content), 0o640))
	return s.Path(uid, rel)
}

// Tree lists what lies in the directory of a pod, to compare before and after; nil if it is gone.
func (s *Scene) Tree(uid string) []string {
	s.t.Helper()
	var all []string
	err := filepath.WalkDir(s.Node.PodDir(uid), func(name string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(s.Node.PodDir(uid), name) // both are absolute
		all = append(all, rel)
		return err
	})
	if err != nil {
		return nil
	}
	return all
}

// Remaining is the tree of a pod that Leave has left behind, once its volumes are removed.
func Remaining() []string {
	return []string{
		".", "containers", "containers/app", "containers/app/0a1b2c3d", "etc-hosts", "plugins", "plugins/kubernetes.io~empty-dir",
		"plugins/kubernetes.io~empty-dir/cache", "plugins/kubernetes.io~empty-dir/cache/ready", "volumes",
		"volumes/kubernetes.io~csi", "volumes/kubernetes.io~empty-dir",
	}
}

// Must fails the test.
func (s *Scene) Must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Roles have something mounted in a mount namespace of their own.
var Roles = kerneltest.Roles{"mount": mountThere, "bind": bindThere, "kubelet": kubeletThere}

// bindThere binds a path elsewhere.
func bindThere(args []string, ready func(string)) error {
	if err := sys.BindMount(args[0], args[1]); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// mountThere mounts a file system on each path. A later one may hide an earlier one.
func mountThere(args []string, ready func(string)) error {
	for _, name := range args {
		if err := sys.NewMount("none", name, "tmpfs", ""); err != nil {
			return fmt.Errorf("mount on %q: %w", name, err)
		}
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// kubeletThere is a kubelet's process whose root directory no other process sees. It makes one with a pod left behind.
func kubeletThere(args []string, ready func(string)) error {
	root := args[0]
	if err := sys.NewMount("none", root, "tmpfs", ""); err != nil {
		return err
	}
	volume := filepath.Join(root, "pods", Gone, "volumes/kubernetes.io~csi", Volume)
	if err := os.MkdirAll(filepath.Join(volume, "mount"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(volume, "vol_data.json"), []byte(VolumeRecord), 0o600); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}
