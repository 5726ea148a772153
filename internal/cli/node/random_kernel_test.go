// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/cri/critest"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/test/loopback"
)

var realRounds = flag.Uint64("real-rounds", kerneltest.Rounds(2), "how many random nodes are made of real mounts")

// realNode is a random node that is made of real mounts. Its kubelet and its container runtime are fakes.
type realNode struct {
	*randomNode
	t       *testing.T
	scene   *kubelettest.Scene
	node    *kubelet.Node
	runtime *fakeContainers
	cgroups string
	// servers serve the CSI volumes, by the volume's point.
	servers map[string]*volumetest.Served
	foreign bool // whether the last scan has seen something of others on this machine
}

// containerPart is a mount that a container has: of a path of the node or, if that is empty, of a file system of its own.
type containerPart struct {
	From, At string
	File     bool
}

// startContainer starts a process in a control group that has these mounts in the root directory. It is no role of the test's own program: that takes
// a hundred times as long to start, and a node has many.
func (r *realNode) startContainer(group, root string, parts []containerPart) (pid int) {
	must(r.t, sys.OnThread(func() error {
		err := errors.Join(sys.UnshareMounts(), sys.SetPropagation("/", sys.Private, true), sys.NewMount("root", root, "tmpfs", ""))
		for _, p := range parts {
			at := filepath.Join(root, p.At)
			switch {
			case err != nil:
				return err
			case p.From == "":
				err = errors.Join(os.MkdirAll(at, 0o755), sys.NewMount("none", at, "tmpfs", ""))
			case p.File:
				err = errors.Join(os.WriteFile(at, nil, 0o644), sys.BindMount(p.From, at))
			default:
				err = errors.Join(os.MkdirAll(at, 0o755), sys.BindMount(p.From, at))
			}
		}
		if err != nil {
			return err
		}
		pid = startShell(r.t, "app")
		return errors.Join(os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644), systest.PivotRoot(root)) // which moves the process
	}))
	return pid
}

// startShell starts a shell with a name and arguments in the mount namespace of the calling thread, with its root as the working directory, and returns
// its process once its program is loaded. It ends with its input, and that with the test.
func startShell(t *testing.T, args ...string) (pid int) {
	cmd := &exec.Cmd{Path: "/bin/sh", Args: append([]string{args[0], "-c", "echo; read end"}, args...), Dir: "/"}
	input, err := cmd.StdinPipe()
	must(t, err)
	output, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() {
		_ = input.Close() // that of a process which has ended, too
		_ = cmd.Wait()
	})
	_, err = output.Read(make([]byte, 1))
	must(t, err)
	return cmd.Process.Pid
}

// fakeContainers are the records of a container runtime.
type fakeContainers struct {
	mu  sync.Mutex
	all []*runtimeapi.ContainerStatusResponse
}

func (c *fakeContainers) records() []*runtimeapi.ContainerStatusResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// makeRealNode makes the node, breaks it, and starts its kubelet and its container runtime.
func makeRealNode(t *testing.T, seed uint64) *realNode {
	t.Helper()
	r := &realNode{t: t, scene: kubelettest.New(t), runtime: &fakeContainers{}, servers: map[string]*volumetest.Served{}, cgroups: t.TempDir()}
	r.randomNode = newRandomNode(seed, r.scene.Root, kerneltest.Run(), time.Now())
	must(t, sys.NewMount("none", r.cgroups, "cgroup2", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(r.cgroups, true) })
	for _, of := range r.sources {
		must(t, os.MkdirAll(filepath.Join(r.layout.PodDir(of.UID), "anchor"), 0o755))
		for _, v := range of.Places {
			must(t, os.MkdirAll(r.layout.VolumePoint(v), 0o755))
		}
	}
	r.writeRecords()
	for _, point := range r.plain {
		must(t, errors.Join(os.MkdirAll(point, 0o755), mount.Tmpfs(point, 1<<20)))
	}
	r.startRuntime()
	for _, v := range r.csi {
		r.makeCSI(v)
	}
	for _, v := range r.secrets {
		r.makeSecret(v)
	}
	for _, uid := range r.running {
		r.startApp(uid)
	}
	for _, v := range r.csi {
		r.breakCSI(v)
	}
	for _, v := range r.secrets {
		if v.stale { // the kubelet writes it again
			r.updateSecret(v, "two")
		}
	}
	must(t, os.Chtimes(r.layout.PodsDir(), time.Now(), time.Now().Add(-time.Hour))) // no pod has come or gone since
	return r
}

func (r *realNode) writeRecords() {
	for point, record := range r.records {
		text := []byte{}
		if record != nil {
			var err error
			text, err = json.Marshal(record)
			must(r.t, err)
		}
		must(r.t, errors.Join(os.MkdirAll(point, 0o755), os.WriteFile(kubelet.VolumeRecordPath(point), text, 0o600)))
	}
}

// startRuntime starts the container runtime, and the kubelet that uses it.
func (r *realNode) startRuntime() {
	socket := critest.Listen(r.t, &critest.Runtime{Records: r.runtime.records})
	r.node = nodeOf(r.t, startShell(r.t, "kubelet", "--root-dir="+r.scene.Root, "--container-runtime-endpoint=unix://"+socket))
}

// nodeOf is the node of a kubelet that renews no binds.
func nodeOf(t *testing.T, pid int) *kubelet.Node {
	t.Helper()
	node, err := (&kubelet.Finder{PID: pid}).Node(t.Context())
	must(t, err)
	node.Program = filepath.Join(t.TempDir(), "kubelet") // the test's own program has the texts of any kubelet
	must(t, os.WriteFile(node.Program, []byte("Skipping bind-mounting subpath"), 0o600))
	return node
}

// start starts a container of a pod. records are the mounts that it has by the runtime, and parts those that it has.
func (r *realNode) start(uid, name string, records []*runtimeapi.Mount, parts []containerPart) {
	// The kubelet's own mounts are in every container, which shows that a table is the container's.
	anchor := filepath.Join(r.layout.PodDir(uid), "anchor")
	records, parts = append(records, &runtimeapi.Mount{HostPath: anchor, ContainerPath: "/anchor"}), append(parts, containerPart{From: anchor, At: "/anchor"})
	sum := sha256.Sum256([]byte(uid + name))
	id := hex.EncodeToString(sum[:])
	pod := filepath.Join(r.cgroups, "kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	group := filepath.Join(pod, "cri-containerd-"+id+".scope")
	must(r.t, os.MkdirAll(group, 0o755))
	r.t.Cleanup(func() {
		kerneltest.Await(r.t, "the end of the control group", func() bool {
			err := os.Remove(group)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
		_ = os.Remove(pod) // the last container's
	})
	pid := r.startContainer(group, r.t.TempDir(), parts)
	now := time.Now().UnixNano()
	r.runtime.mu.Lock()
	defer r.runtime.mu.Unlock()
	r.runtime.all = append(r.runtime.all, &runtimeapi.ContainerStatusResponse{
		Status: &runtimeapi.ContainerStatus{
			Id: id, State: runtimeapi.ContainerState_CONTAINER_RUNNING, CreatedAt: now, StartedAt: now, Mounts: records,
			Labels: critest.Labels("default", "pod-"+uid, uid, name),
		},
		Info: map[string]string{"info": fmt.Sprintf(`{"pid":%d}`, pid)},
	})
}

// serveCSI has a file system of a volume served, and binds a directory of it in the volume's place if it is staged. A disk has ext4.
func (r *realNode) serveCSI(v randomCSI) {
	served := v.point
	if v.staging != "" {
		served = v.staging
	}
	must(r.t, os.MkdirAll(served, 0o755))
	if v.disk {
		r.mountDisk(served)
		must(r.t, os.Mkdir(filepath.Join(served, "vol"), 0o755))
	} else {
		r.servers[v.point] = volumetest.Serve(r.t, served, "vol", "text")
	}
	if v.staging != "" {
		must(r.t, sys.BindMount(filepath.Join(v.staging, "vol"), v.point))
		r.t.Cleanup(func() { _ = systest.UnmountPath(v.point, true) }) // before its disk goes
	}
}

// diskImage is the content of an empty ext4, which is made once.
var diskImage = sync.OnceValues(func() ([]byte, error) {
	file, err := os.CreateTemp("", "disk")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if out, err := exec.Command("mkfs.ext4", "-q", "-O", "^has_journal", file.Name(), "1M").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return os.ReadFile(file.Name())
})

// mountDisk mounts an ext4 of a loop device of its own.
func (r *realNode) mountDisk(at string) {
	image, err := diskImage()
	must(r.t, err)
	file := filepath.Join(r.t.TempDir(), "disk")
	must(r.t, os.WriteFile(file, image, 0o600))
	node := loopback.Attach(r.t, file)
	r.t.Cleanup(func() { loopback.Detach(r.t, node, file) })
	must(r.t, sys.NewMount(node, at, "ext4", ""))
	r.t.Cleanup(func() { _ = systest.UnmountPath(at, true) })
}

// makeCSI mounts a volume, and starts the containers that have it. After those with a dead copy, the driver mounts it again.
func (r *realNode) makeCSI(v randomCSI) {
	if !v.missing {
		r.serveCSI(v)
	}
	start := func(dead bool) (any bool) {
		for _, c := range v.copies {
			if c.dead == dead {
				any = true
				r.start(v.uid, c.container, []*runtimeapi.Mount{{HostPath: v.point, ContainerPath: c.point}}, []containerPart{{From: v.point, At: c.point}})
			}
		}
		return any
	}
	if start(true) {
		r.servers[v.point].Kill(r.t)
		for _, point := range []string{v.point, v.staging} {
			if point != "" {
				must(r.t, systest.UnmountPath(point, true))
			}
		}
		r.serveCSI(v)
	}
	start(false)
}

// breakCSI has a volume answer as it is to.
func (r *realNode) breakCSI(v randomCSI) {
	served := v.point
	if v.staging != "" {
		served = v.staging
	}
	command, want := "", v.answer.Errno
	switch v.answer.State {
	case asking.Disconnected:
		r.servers[v.point].Kill(r.t)
	case asking.Hung:
		r.servers[v.point].Hang()
	case asking.Missing:
		command, want = fmt.Sprintf("delete:vol:%d:false", int(v.answer.Errno)), sys.ENOENT
	case asking.Stale, asking.Broken, asking.Denied:
		command = fmt.Sprint("fail-", int(v.answer.Errno))
	case asking.Alive:
		if v.answer.Deleted { // of a disk
			must(r.t, os.Remove(filepath.Join(v.staging, "vol")))
		}
	}
	if command == "" {
		return
	}
	if _, err := os.Lstat(filepath.Join(served, command)); !errors.Is(err, want) {
		r.t.Fatalf("%s of %q: %v, want %v", command, served, err, want)
	}
}

// makeSecret writes a Secret, and binds a key of it.
func (r *realNode) makeSecret(v randomSecret) {
	if v.missing {
		return
	}
	must(r.t, mount.Tmpfs(v.point, 1<<20))
	if version := r.updateSecret(v, "one"); v.bind != "" {
		r.scene.Bind(filepath.Join(version, "a"), v.bind)
	}
}

// updateSecret writes a Secret as the kubelet does, and returns the directory of this version.
func (r *realNode) updateSecret(v randomSecret, text string) string {
	pod := &corev1.Pod{}
	pod.UID = types.UID(v.uid)
	return r.scene.Update(pod, kubelettest.Secret, v.name, map[string]string{"a": text})
}

// startApp starts container c0 of a pod with the mounts of Secrets that it has.
func (r *realNode) startApp(uid string) {
	var records []*runtimeapi.Mount
	var parts []containerPart
	for _, v := range r.secrets {
		if v.uid != uid {
			continue
		}
		if v.bind != "" {
			records = append(records, &runtimeapi.Mount{HostPath: v.bind, ContainerPath: "/p" + v.name})
			parts = append(parts, containerPart{From: v.bind, At: "/p" + v.name, File: true})
		}
		if v.inside != nil {
			records = append(records, &runtimeapi.Mount{HostPath: v.point, ContainerPath: v.inside.Point})
			parts = append(parts, partsOf(v)...)
		}
	}
	r.start(uid, "c0", records, parts)
}

// partsOf are the mounts that a container has of a Secret, or in its place.
func partsOf(v randomSecret) []containerPart {
	m := v.inside
	bind, own := containerPart{From: v.point, At: m.Point}, containerPart{At: m.Point}
	switch {
	case m.Elsewhere:
		return []containerPart{{From: v.point, At: "/elsewhere/" + v.name}}
	case m.Covered && m.Has.Device == "":
		return []containerPart{bind, {At: filepath.Dir(m.Point)}}
	case m.Covered:
		return []containerPart{bind, own}
	case m.Has.Device == "": // the runtime's record alone
		return nil
	case m.Has != m.Wants:
		return []containerPart{own}
	}
	return []containerPart{bind}
}

// specs are those of the node's pods that have one.
func (r *realNode) specs() podFile {
	all := podFile{}
	for _, s := range r.sources {
		if s.Spec != nil {
			all[s.UID] = s.Spec
		}
	}
	return all
}

// own reports whether a fault or a place is of this node.
func (r *realNode) own(uid, point string) bool {
	return slices.ContainsFunc(r.sources, func(s mountstate.PodSource) bool { return s.UID == uid }) || uid == "" && strings.HasPrefix(point, r.scene.Root)
}
