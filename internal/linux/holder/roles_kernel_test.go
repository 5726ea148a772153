// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package holder

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestMain(m *testing.M) { kerneltest.Main(m, roles) }

// roles hold a device, the first argument, each in its way. The second is a
// directory to mount it on. The answer is the process that holds it.
var roles = kerneltest.Roles{
	"mounted":    inOwn(func(_, _ string) error { return nil }),
	"covered":    inOwn(func(_, dir string) error { return sys.NewMount("cover", dir, "tmpfs", "") }),
	"chrooted":   inOwn(func(_, _ string) error { return sys.Chroot("/usr") }),
	"pivoted":    inOwn(pivot),
	"moved":      inOwn(moveOverRoot),
	"threaded":   inThread(nil),
	"descriptor": inThread(func() (*os.File, error) { return os.Open("/proc/thread-self/ns/mnt") }),
	"table":      inThread(func() (*os.File, error) { return os.Open("/proc/thread-self/mountinfo") }),

	"lazy file":      lazily(openFile),
	"lazy directory": lazily(func(dir string) (kept, error) { return kept{}, os.Chdir(dir) }),
	"lazy root":      lazily(func(dir string) (kept, error) { return kept{}, sys.Chroot(dir) }),
	"lazy program":   lazily(runProgram),
	"lazy mapping":   lazily(runLibrary),
	"lazy thread":    lazyThread,
	"detached":       lazily(cloneTree),
	"in flight":      lazily(sendFile),
	"overlaid":       lazily(overlayOn),
	"looped":         lazily(loopOn),

	"raw":   func(args []string, ready func(string)) error { return holdOpen(args[0], ready) },
	"copy":  func(_ []string, ready func(string)) error { return stay(ready, kept{}) },
	"binds": bindMany,
	"find":  findRole,
	"churn": churn,

	// container and idle are part of a load.
	"container": containerRole,
	"idle":      func([]string, func(string)) error { kerneltest.WaitForEnd(); return nil },
}

type role = func(args []string, ready func(string)) error

// kept is what a role keeps until its end, and who holds the device by it: the
// role's process, where that is not said.
type kept struct {
	pid int
	end func() error
}

// stay says who holds the device and waits for the end.
func stay(ready func(string), k kept) error {
	if k.pid == 0 {
		k.pid = os.Getpid()
	}
	ready(strconv.Itoa(k.pid))
	kerneltest.WaitForEnd()
	if k.end == nil {
		return nil
	}
	return k.end()
}

func mountPrivately(dev, dir string) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	return sys.NewMount(dev, dir, "ext4", "")
}

// inOwn mounts the device in the process' namespace, and does something more.
func inOwn(then func(dev, dir string) error) role {
	return func(args []string, ready func(string)) error {
		if err := mountPrivately(args[0], args[1]); err != nil {
			return err
		}
		if err := then(args[0], args[1]); err != nil {
			return err
		}
		return stay(ready, kept{})
	}
}

// pivot makes another file system the root, as runtimes do, with the device
// mounted at /data.
func pivot(_, dir string) error {
	root, err := os.MkdirTemp("/tmp", "root")
	if err != nil {
		return err
	}
	if err := sys.NewMount("root", root, "tmpfs", ""); err != nil {
		return err
	}
	data, old := filepath.Join(root, "data"), filepath.Join(root, "old")
	for _, err := range []error{os.Mkdir(data, 0o700), os.Mkdir(old, 0o700), sys.MoveMountTo(dir, data)} {
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
	return sys.UnmountPath("/old", true)
}

// moveOverRoot covers the root, as runtimes do that must not pivot.
func moveOverRoot(_, dir string) error {
	root, err := os.MkdirTemp(filepath.Dir(dir), "root")
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return sys.NewMount("root", root, "tmpfs", "") },
		func() error { return os.Chdir(root) },
		func() error { return sys.MoveMountTo(".", "/") },
		func() error { return sys.Chroot(".") },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// inThread mounts the device in a namespace of one thread's own. That stays, or
// ends after it has opened what then keeps the namespace alive.
func inThread(open func() (*os.File, error)) role {
	return func(args []string, ready func(string)) error {
		var (
			file *os.File
			self string
		)
		err := sys.OnThread(func() (err error) {
			if err := sys.UnshareMounts(); err != nil {
				return err
			}
			if err := mountPrivately(args[0], args[1]); err != nil {
				return err
			}
			if open == nil {
				return stay(ready, kept{})
			}
			if self, err = os.Readlink("/proc/thread-self"); err == nil {
				file, err = open()
			}
			return err
		})
		if err != nil || open == nil {
			return err
		}
		for err == nil { // until the thread has ended
			_, err = os.Stat(filepath.Join("/proc", self))
		}
		return stay(ready, kept{end: file.Close})
	}
}

// lazily uses the device in some way, and unmounts it.
func lazily(use func(dir string) (kept, error)) role {
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
			return sys.UnmountPath(filepath.Base(args[1]), true)
		})
		here.Close()
		if err != nil {
			return err
		}
		return stay(ready, k)
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
		if err := sys.UnmountPath(args[1], true); err != nil {
			return err
		}
		return stay(ready, kept{})
	})
}

func openFile(dir string) (kept, error) {
	f, err := os.Create(filepath.Join(dir, "file"))
	return kept{end: f.Close}, err
}

// runProgram runs a program that lies on the device.
func runProgram(dir string) (kept, error) {
	program := filepath.Join(dir, "program")
	return runFrom(program, "/bin/sleep", exec.Command(program, "1000"))
}

// runLibrary runs a program with a library that lies on the device.
func runLibrary(dir string) (kept, error) {
	library := filepath.Join(dir, "library")
	source, err := filepath.Glob("/lib/*/libm.so.6")
	if err != nil || len(source) == 0 {
		return kept{}, fmt.Errorf("no library to load: %w", err)
	}
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library)
	return runFrom(library, source[0], cmd)
}

// runFrom copies a file to the device, and starts what uses it; it is ready when
// the copy shows in its memory.
func runFrom(file, source string, cmd *exec.Cmd) (kept, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return kept{}, err
	}
	if err := os.WriteFile(file, content, 0o700); err != nil {
		return kept{}, err
	}
	if err := cmd.Start(); err != nil {
		return kept{}, err
	}
	for {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if err != nil || bytes.Contains(maps, []byte(file)) && bytes.Contains(maps, []byte("libc.so")) {
			return kept{pid: cmd.Process.Pid, end: func() error {
				cmd.Process.Kill()
				cmd.Wait()
				return nil
			}}, err
		}
	}
}

func cloneTree(dir string) (kept, error) {
	fd, err := sys.Lookup(dir)
	if err != nil {
		return kept{}, err
	}
	defer fd.Close()
	tree, err := sys.CloneTree(fd)
	return kept{end: tree.Close}, err
}

// sendFile has a descriptor wait in a socket.
func sendFile(dir string) (kept, error) {
	name := filepath.Join(filepath.Dir(dir), "socket")
	receiver, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return kept{}, err
	}
	sender, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return kept{}, err
	}
	defer sender.Close()
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return kept{}, err
	}
	defer file.Close()
	if _, _, err := sender.WriteMsgUnix([]byte("x"), rights(int(file.Fd())), nil); err != nil {
		return kept{}, err
	}
	return kept{end: receiver.Close}, nil
}

// rights is struct cmsghdr with SCM_RIGHTS and one descriptor.
func rights(fd int) []byte {
	b := make([]byte, 24)
	b[0], b[8], b[12] = 20, 1, 1
	b[16], b[17] = byte(fd), byte(fd>>8)
	return b
}

// overlayOn mounts an overlay beside dir, with layers that are on the device.
func overlayOn(dir string) (kept, error) {
	merged := filepath.Join(filepath.Dir(dir), "merged")
	for _, name := range []string{"lower", "upper", "work", "../merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return kept{}, err
		}
	}
	return kept{}, sys.NewMount("overlay", merged, "overlay", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
}

// loopOn makes a file on the device a device.
func loopOn(dir string) (kept, error) {
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		return kept{}, err
	}
	dev, err := output("losetup", "--find", "--show", image)
	return kept{end: exec.Command("losetup", "--detach", dev).Run}, err
}

func holdOpen(dev string, ready func(string)) error {
	f, err := os.Open(dev)
	if err != nil {
		return err
	}
	return stay(ready, kept{end: f.Close})
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
	if err := touch(source); err != nil {
		return err
	}
	for i := range n {
		point := filepath.Join(points, strconv.Itoa(i))
		if err := touch(point); err != nil {
			return err
		}
		if err := sys.BindMount(source, point); err != nil {
			return err
		}
	}
	return stay(ready, kept{})
}

func touch(name string) error { return os.WriteFile(name, nil, 0o600) }

// churn starts processes and has them end, until its own end.
func churn(_ []string, ready func(string)) error {
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
