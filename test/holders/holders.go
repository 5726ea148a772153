// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package holders has the ways in which a process of a test holds a file system that no mount table shows. It is for the
// roles of kernel tests, run as root in mount namespaces of their own.
package holders

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Role is what a process of a test does, see kerneltest.Roles.
type Role = func(args []string, ready func(string)) error

// Kept is what a role keeps until its end; PID is who does, if that is not the role's own process.
type Kept struct {
	PID int
	End func() error
}

// Stay says who holds, waits for the end of the test, and lets go.
func (k Kept) Stay(ready func(string)) error {
	if k.PID == 0 {
		k.PID = os.Getpid()
	}
	ready(strconv.Itoa(k.PID))
	kerneltest.WaitForEnd()
	if k.End == nil {
		return nil
	}
	return k.End()
}

// InThread has a thread alone be in a new mount namespace, in which prepare is called. The thread stays, or ends when
// open has opened what keeps its namespace.
func InThread(prepare func(args []string) error, open func() (*os.File, error)) Role {
	return func(args []string, ready func(string)) error {
		var file *os.File
		var self string
		err := sys.OnThread(func() (err error) {
			if err := sys.UnshareMounts(); err != nil {
				return err
			}
			if err := prepare(args); err != nil {
				return err
			}
			if open == nil {
				return Kept{}.Stay(ready)
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
		return Kept{End: file.Close}.Stay(ready)
	}
}

// OpenFile has a file in dir open.
func OpenFile(dir string) (Kept, error) {
	f, err := os.Create(filepath.Join(dir, "file"))
	return Kept{End: f.Close}, err
}

// RunLibrary runs a program with a library that lies in dir.
func RunLibrary(dir string) (Kept, error) {
	source, err := filepath.Glob("/lib/*/libm.so.6")
	if err != nil || len(source) == 0 {
		return Kept{}, fmt.Errorf("no library to load: %w", err)
	}
	links, err := os.MkdirTemp("", "links")
	if err != nil {
		return Kept{}, err
	}
	defer os.RemoveAll(links)
	// The loader takes a space for the end of the name.
	library, link := filepath.Join(dir, "library"), filepath.Join(links, "library")
	if err := os.Symlink(library, link); err != nil {
		return Kept{}, err
	}
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+link)
	return RunCopy(source[0], library, cmd)
}

// RunCopy copies source to file and starts what uses it; it returns when the copy shows in the memory of cmd.
func RunCopy(source, file string, cmd *exec.Cmd) (Kept, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return Kept{}, err
	}
	if err := os.WriteFile(file, content, 0o700); err != nil {
		return Kept{}, err
	}
	if err := cmd.Start(); err != nil {
		return Kept{}, err
	}
	k := Kept{PID: cmd.Process.Pid, End: func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return err
	}}
	mapped := []byte("/" + filepath.Base(file) + "\n")
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", k.PID))
		if err != nil {
			return k, errors.Join(err, k.End())
		}
		if bytes.Contains(text, mapped) && bytes.Contains(text, []byte("libc.so")) {
			return k, nil
		}
	}
}

// CloneTree keeps a copy of the mount at dir that is attached nowhere.
func CloneTree(dir string) (Kept, error) {
	fd, err := sys.Lookup(dir)
	if err != nil {
		return Kept{}, err
	}
	defer fd.Close()
	tree, err := sys.CloneTree(fd)
	return Kept{End: tree.Close}, err
}

// OverlayOn mounts an overlay beside dir, with layers that are in dir.
func OverlayOn(dir string) (Kept, error) {
	merged := filepath.Join(filepath.Dir(dir), "merged")
	for _, name := range []string{"lower", "upper", "work", "../merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return Kept{}, err
		}
	}
	return Kept{}, sys.NewMount("overlay", merged, "overlay", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
}

// LoopOn makes a file in dir a device.
func LoopOn(dir string) (Kept, error) {
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		return Kept{}, err
	}
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	device := strings.TrimSpace(string(out))
	return Kept{End: func() error { return exec.Command("losetup", "--detach", device).Run() }}, err
}

// SendFile has a descriptor of a file in dir wait in a socket.
func SendFile(dir string) (Kept, error) {
	address := &net.UnixAddr{Name: fmt.Sprintf("@kubediag-test-%d", os.Getpid()), Net: "unix"}
	receiver, err := net.ListenUnix("unix", address)
	if err != nil {
		return Kept{}, err
	}
	sender, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return Kept{}, err
	}
	defer func() { _ = sender.Close() }()
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return Kept{}, err
	}
	defer file.Close()
	rights := make([]byte, 24) // struct cmsghdr of SOL_SOCKET, SCM_RIGHTS and one descriptor
	rights[0], rights[8], rights[12] = 20, 1, 1
	rights[16], rights[17] = byte(file.Fd()), byte(file.Fd()>>8)
	_, _, err = sender.WriteMsgUnix([]byte("x"), rights, nil)
	return Kept{End: receiver.Close}, err
}
