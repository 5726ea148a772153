// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package devholder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/holders"
)

func TestMain(m *testing.M) {
	subprocess.Main(Job)
	kerneltest.Main(m, roles)
}

// roles hold a device, the first argument, each in its way. The second is a
// directory to mount it on. The answer is the process that holds it.
var roles = kerneltest.Roles{
	"mounted":    inOwnNamespace(func(_, _ string) error { return nil }),
	"covered":    inOwnNamespace(func(_, dir string) error { return sys.NewMount("cover", dir, "tmpfs", "") }),
	"chrooted":   inOwnNamespace(func(_, _ string) error { return systest.Chroot("/usr") }),
	"pivoted":    inOwnNamespace(pivotRole),
	"moved":      inOwnNamespace(func(_, dir string) error { return kerneltest.MoveOverRoot(dir) }),
	"threaded":   holders.InThread(mountArgs, nil),
	"descriptor": holders.InThread(mountArgs, func() (*os.File, error) { return os.Open("/proc/thread-self/ns/mnt") }),
	"table":      holders.InThread(mountArgs, func() (*os.File, error) { return os.Open("/proc/thread-self/mountinfo") }),

	"lazy file":      lazyRole(holders.OpenFile),
	"lazy directory": lazyRole(func(dir string) (holders.Kept, error) { return holders.Kept{}, os.Chdir(dir) }),
	"lazy root":      lazyRole(func(dir string) (holders.Kept, error) { return holders.Kept{}, systest.Chroot(dir) }),
	"lazy program":   lazyRole(runProgram),
	"lazy mapping":   lazyRole(holders.RunLibrary),
	"lazy thread":    lazyThread,
	"detached":       lazyRole(holders.CloneTree),
	"in flight":      lazyRole(holders.SendFile),
	"overlaid":       lazyRole(holders.OverlayOn),
	"looped":         lazyRole(holders.LoopOn),

	"trap":  overlayTrapRole,
	"execs": execRole,
	"raw":   func(args []string, ready func(string)) error { return holdOpen(args[0], ready) },
	"copy":  func(_ []string, ready func(string)) error { return holders.Kept{}.Stay(ready) },
	"binds": bindMany,
	"find":  findRole,
	"use":   useRole,
	"churn": churnRole,

	// container and idle are part of a load.
	"container":       containerRole,
	"plain container": plainRole,
	"idle":            func([]string, func(string)) error { kerneltest.WaitForEnd(); return nil },
}

func mountArgs(args []string) error { return mountPrivately(args[0], args[1]) }

func mountPrivately(dev, dir string) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	return sys.NewMount(dev, dir, "ext4", "")
}

// inOwnNamespace mounts the device in the process' namespace, and does something more.
func inOwnNamespace(then func(dev, dir string) error) holders.Role {
	return func(args []string, ready func(string)) error {
		if err := mountPrivately(args[0], args[1]); err != nil {
			return err
		}
		if err := then(args[0], args[1]); err != nil {
			return err
		}
		return holders.Kept{}.Stay(ready)
	}
}

// pivotRole makes another file system the root, as runtimes do, with the device
// mounted at /data.
func pivotRole(_, dir string) error {
	root, err := os.MkdirTemp("/tmp", "root")
	if err != nil {
		return err
	}
	if err := sys.NewMount("root", root, "tmpfs", ""); err != nil {
		return err
	}
	data, old := filepath.Join(root, "data"), filepath.Join(root, "old")
	for _, err := range []error{os.Mkdir(data, 0o700), os.Mkdir(old, 0o700), systest.MoveMountTo(dir, data)} {
		if err != nil {
			return err
		}
	}
	if out, err := exec.Command("pivot_root", root, old).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join("/old", root)); err != nil {
		return err
	}
	return systest.UnmountPath("/old", true)
}

// lazyRole uses the device in some way, and unmounts it.
func lazyRole(use func(dir string) (holders.Kept, error)) holders.Role {
	return func(args []string, ready func(string)) error {
		if err := mountPrivately(args[0], args[1]); err != nil {
			return err
		}
		// Opened before the root may change.
		here, err := os.Open(filepath.Dir(args[1]))
		if err != nil {
			return err
		}
		k, err := use(args[1])
		if err != nil {
			return err
		}
		// A working directory of its own leaves that of the process as it is.
		err = sys.OnThread(func() error {
			if err := here.Chdir(); err != nil {
				return err
			}
			return systest.UnmountPath(filepath.Base(args[1]), true)
		})
		here.Close()
		if err != nil {
			return err
		}
		return k.Stay(ready)
	}
}

// lazyThread has a thread alone have its working directory on the device.
func lazyThread(args []string, ready func(string)) error {
	if err := mountPrivately(args[0], args[1]); err != nil {
		return err
	}
	return sys.OnThread(func() error {
		if err := os.Chdir(args[1]); err != nil {
			return err
		}
		if err := systest.UnmountPath(args[1], true); err != nil {
			return err
		}
		return holders.Kept{}.Stay(ready)
	})
}

// runProgram runs a program that lies on the device.
func runProgram(dir string) (holders.Kept, error) {
	program := filepath.Join(dir, "program")
	return holders.RunCopy("/bin/sleep", program, exec.Command(program, "1000"))
}

func holdOpen(dev string, ready func(string)) error {
	f, err := os.Open(dev)
	if err != nil {
		return err
	}
	return holders.Kept{End: f.Close}.Stay(ready)
}

// bindMany mounts the device, and binds a file of it again and again.
func bindMany(args []string, ready func(string)) error {
	dev, dir := args[0], args[1]
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := mountPrivately(dev, dir); err != nil {
		return err
	}
	source, points := filepath.Join(dir, "file"), filepath.Join(dir, "lost+found")
	if err := sys.NewMount("points", points, "tmpfs", ""); err != nil {
		return err
	}
	if err := createFile(source); err != nil {
		return err
	}
	for i := range n {
		point := filepath.Join(points, strconv.Itoa(i))
		if err := createFile(point); err != nil {
			return err
		}
		if err := sys.BindMount(source, point); err != nil {
			return err
		}
	}
	return holders.Kept{}.Stay(ready)
}

func createFile(name string) error { return os.WriteFile(name, nil, 0o600) }

// churnRole starts processes and has them end, until its own end.
func churnRole(_ []string, ready func(string)) error {
	done := make(chan struct{})
	go func() {
		kerneltest.WaitForEnd()
		close(done)
	}()
	ready("")
	for {
		select {
		case <-done:
			return nil
		default:
			if err := exec.Command("/bin/true").Run(); err != nil {
				return err
			}
		}
	}
}

func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

var must = kerneltest.Must
