// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// Main is for TestMain.
func Main(m *testing.M) {
	subprocess.Main(device.Job, devholder.Job)
	kerneltest.Main(m, Roles)
}

// Roles are what the processes of a Scene do. A package adds its own before it calls Main.
var Roles = kerneltest.Roles{"device container": container, "daemon": kerneltest.HoldPrivately, "orphan": orphan, "leak": leak}

// leak has a file open, and no mount of its file system.
func leak(args []string, ready func(string)) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(args[0], "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, point := range args {
		if err := systest.UnmountPath(point, true); err != nil {
			return err
		}
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// orphan keeps the namespace of a thread that has ended by a file of the thread's.
func orphan(_ []string, ready func(string)) error {
	var (
		file *os.File
		self string
	)
	err := sys.OnThread(func() (err error) {
		if err := sys.UnshareMounts(); err != nil {
			return err
		}
		if err := sys.SetPropagation("/", sys.Private, true); err != nil {
			return err
		}
		if self, err = os.Readlink("/proc/thread-self"); err == nil {
			file, err = os.Open("/proc/thread-self/ns/mnt")
		}
		return err
	})
	if err != nil {
		return err
	}
	defer file.Close()
	for err == nil { // until the thread has ended
		_, err = os.Stat(filepath.Join("/proc", self))
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// container makes a root directory as a runtime does, and moves into it.
func container(args []string, ready func(string)) error {
	root, mode, args := args[0], args[1], args[2:]
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	if err := sys.NewMount("root", root, "tmpfs", ""); err != nil {
		return err
	}
	for _, dir := range []string{"host", "data", "dev", "over", "empty"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := furnish(root, mode, args); err != nil {
		return err
	}
	if err := systest.PivotRoot(root); err != nil {
		return err
	}
	if mode == "user" {
		f, err := os.Open(filepath.Join("/host", args[0]))
		if err != nil {
			return err
		}
		defer f.Close()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// furnish mounts what the container gets.
func furnish(root, mode string, args []string) error {
	host, data := filepath.Join(root, "host"), filepath.Join(root, "data")
	switch mode {
	case "volume":
		return sys.BindMount(args[0], data)
	case "own":
		return sys.NewMount(args[0], data, "ext4", "")
	case "overlaid":
		over, empty := filepath.Join(root, "over"), filepath.Join(root, "empty")
		if err := sys.NewMount("over", over, "overlay", "lowerdir="+args[0]+":"+empty); err != nil {
			return err
		}
		return bindAll(filepath.Join(over, "dir"), "--make-rprivate")
	case "exporter", "user":
		return bindAll(host, "--make-rprivate")
	case "shared":
		return bindAll(host, "--make-rshared")
	}
	return fmt.Errorf("unknown mode %q", mode)
}

// bindAll has all mounts of the host at a directory, and says how they share.
func bindAll(at, how string) error {
	if _, err := runProgram("mount", "--rbind", "/", at); err != nil {
		return err
	}
	_, err := runProgram("mount", how, at)
	return err
}
