// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// load is a machine full of containers.
type load struct {
	processes, namespaces int
}

// What a container adds to the mounts of its node, and how many of those there
// are, so that a namespace has some 199.
const (
	ownMounts  = 12
	nodeMounts = 165
)

// start builds the node's mounts in the test's namespace, and starts the
// containers' processes, which end with the test. A tenth of the namespaces
// have a deleted source, and a seventh the file system at held.
func (l load) start(b *testing.B) {
	b.Helper()
	// Not b.TempDir: a comma in the benchmark's name would end an option of overlay.
	node, err := os.MkdirTemp("", "load")
	must(b, err)
	b.Cleanup(func() { os.Remove(node) })
	must(b, sys.NewMount("node", node, "tmpfs", ""))
	b.Cleanup(func() { sys.UnmountPath(node, true) })
	must(b, makeNode(node))
	for i := range l.namespaces {
		kerneltest.Start(b, "container", node, strconv.Itoa(i), strconv.Itoa(l.processes/l.namespaces))
	}
}

// makeNode mounts what a kubelet and a runtime mount for their pods.
func makeNode(node string) error {
	held := filepath.Join(node, "held")
	if err := mkdirAndMount("held", held, "tmpfs", ""); err != nil {
		return err
	}
	for i := 0; i < nodeMounts; i += 4 {
		pod := filepath.Join(node, "pods", fmt.Sprintf("29da79e5-386c-4e0d-82c1-%012x", i))
		conf := filepath.Join(pod, "volumes/kubernetes.io~configmap/conf/..2021_06_02_06_01_21.244319292")
		if err := os.MkdirAll(conf, 0o700); err != nil {
			return err
		}
		source, target := filepath.Join(conf, "nginx.log"), filepath.Join(pod, "volume-subpaths-conf-app-1")
		overlay := filepath.Join(node, "overlay", fmt.Sprintf("%064x", i))
		for _, err := range []error{
			touch(source), touch(target), sys.BindMount(source, target),
			mkdirAndMount("tmpfs", filepath.Join(pod, "volumes/kubernetes.io~projected/kube-api-access"), "tmpfs", "size=262144k"),
			mkdirAndMount("shm", filepath.Join(node, "sandboxes", fmt.Sprintf("%064x", i), "shm"), "tmpfs", "size=65536k"),
			mountOverlay(overlay),
		} {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func mkdirAndMount(source, dir, fsType, data string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return sys.NewMount(source, dir, fsType, data)
}

// mountOverlay mounts six lower directories.
func mountOverlay(dir string) error {
	lower := ""
	for i := range 6 {
		layer := filepath.Join(dir, strconv.Itoa(i))
		if err := os.MkdirAll(layer, 0o700); err != nil {
			return err
		}
		lower += ":" + layer
	}
	return mkdirAndMount("overlay", filepath.Join(dir, "rootfs"), "overlay", "lowerdir="+lower[1:])
}

// containerRole makes the mounts of one container, and its other processes.
func containerRole(args []string, ready func(string)) error {
	node := args[0]
	number, _ := strconv.Atoi(args[1])
	processes, _ := strconv.Atoi(args[2])
	if err := holdMounts(nil); err != nil {
		return err
	}
	if err := makeContainer(filepath.Join(node, "held"), filepath.Join(node, "own"), number); err != nil {
		return err
	}
	for range processes - 1 {
		p, err := os.StartProcess("/proc/self/exe", []string{os.Args[0]}, &os.ProcAttr{
			Env:   append(kerneltest.RoleEnv("idle"), "GOMAXPROCS=1", "GOGC=off"),
			Files: []*os.File{os.Stdin, os.Stderr, os.Stderr},
		})
		if err != nil {
			return err
		}
		defer p.Wait()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// makeContainer mounts a container's own files, on a file system of its own at
// dir, and unmounts the held one in most.
func makeContainer(held, dir string, number int) error {
	if err := mkdirAndMount("container", dir, "tmpfs", ""); err != nil {
		return err
	}
	for i := range ownMounts {
		source, target := filepath.Join(dir, fmt.Sprintf("file-%d", i)), filepath.Join(dir, fmt.Sprintf("etc-file-%d", i))
		for _, err := range []error{touch(source), touch(target), sys.BindMount(source, target)} {
			if err != nil {
				return err
			}
		}
		if i == 0 && number%10 == 0 {
			if err := os.Remove(source); err != nil {
				return err
			}
		}
	}
	if number%7 != 0 {
		return sys.UnmountPath(held, true)
	}
	return nil
}
