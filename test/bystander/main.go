// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command bystander does to a machine what other programs do there, again and again: it mounts and unmounts, removes what it
// has bound, makes mount namespaces, loop devices, FUSE connections that hang and die, processes, among them one by the name
// of kubelet, and listens on ports. Tests must not fail beside it. It runs as root until it is interrupted, and takes
// everything with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pause is how long each thing stays, and how long it is waited before it is done once more.
const pause = 10 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bystander:", err)
		os.Exit(1)
	}
}

// deeds are what is done, by name. Each undoes what it has done.
var deeds = map[string]func(ctx context.Context, dir string) error{
	"mount": mounts, "namespace": namespace, "loop device": loop, "FUSE connection": connection, "process": process, "port": port,
}

// run does everything side by side until ctx ends, and says how often.
func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bystander-")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for name, do := range deeds {
		at := filepath.Join(dir, name)
		errs = append(errs, os.Mkdir(at, 0o700))
		all.Go(func() {
			n := 0
			var err error
			for ; ctx.Err() == nil && err == nil; time.Sleep(pause) {
				err = do(ctx, at)
				n++
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && ctx.Err() == nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			fmt.Printf("%s: %d times\n", name, n)
		})
	}
	all.Wait()
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// mounts mounts a file system, binds a directory and a file of it, removes the file, and unmounts all.
func mounts(_ context.Context, dir string) (err error) {
	if err := unix.Mount("bystander", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	for _, name := range []string{source, target} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	err = os.Remove(source)
	time.Sleep(pause)
	return errors.Join(err, unix.Unmount(target, 0))
}

// namespace starts a process with a mount namespace of its own.
func namespace(ctx context.Context, _ string) error {
	return sleep(ctx, "/bin/sleep", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL})
}

// process starts a process that has the name of a kubelet.
func process(ctx context.Context, dir string) error {
	program := filepath.Join(dir, "kubelet")
	if _, err := os.Stat(program); err != nil {
		sleep, err := os.ReadFile("/bin/sleep")
		if err := errors.Join(err, os.WriteFile(program, sleep, 0o700)); err != nil { //nolint:gosec // it is a program
			return err
		}
	}
	return sleep(ctx, program, &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL})
}

func sleep(ctx context.Context, program string, attr *syscall.SysProcAttr) error {
	cmd := exec.CommandContext(ctx, program, "0.1")
	cmd.SysProcAttr = attr
	return cmd.Run()
}

// loop sets a loop device up.
func loop(_ context.Context, dir string) error {
	image, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		return err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err = errors.Join(err, image.Truncate(1<<20)); err != nil {
		return err
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return err
	}
	device, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
	if errors.Is(err, unix.EBUSY) {
		return nil // another was faster
	}
	time.Sleep(pause)
	return errors.Join(err, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
}

// connection mounts a FUSE that no process serves. A process waits for it until the connection is closed, and then it
// is dead.
func connection(ctx context.Context, dir string) error {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Mount("bystander", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device))
	if err != nil {
		return errors.Join(err, unix.Close(device))
	}
	user := exec.CommandContext(ctx, "/bin/stat", filepath.Join(dir, "file"))
	started := user.Start()
	time.Sleep(pause)
	err = errors.Join(started, unix.Close(device))
	if started == nil {
		_ = user.Wait() // it fails
	}
	time.Sleep(pause)
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

// port listens on several ports.
func port(context.Context, string) error {
	var all []net.Listener
	var errs []error
	for range 8 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			all = append(all, l)
		}
		errs = append(errs, err)
	}
	time.Sleep(pause)
	for _, l := range slices.Backward(all) {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
