// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/vm/wire"
)

// mounting is one file system that every machine has.
type mounting struct {
	point, fsType, data string
	flags               uintptr
}

// early are mounted in the initramfs and move to the root file system.
var early = []mounting{
	{point: "/dev", fsType: "devtmpfs"},
	{point: "/proc", fsType: "proc"},
	{point: "/sys", fsType: "sysfs"},
}

// late are mounted on the root file system.
var late = []mounting{
	{point: "/dev/pts", fsType: "devpts"},
	{point: "/dev/shm", fsType: "tmpfs"},
	{point: "/sys/fs/cgroup", fsType: "cgroup2"},
	{point: "/sys/kernel/security", fsType: "securityfs"},
	{point: "/sys/fs/fuse/connections", fsType: "fusectl"},
}

// patience bounds the search for a device, pause is between two looks.
const (
	patience = 30 * time.Second
	pause    = 10 * time.Millisecond
)

func mountAll(all []mounting) error {
	for _, m := range all {
		if err := os.MkdirAll(m.point, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make mount point: %w", err)
		}
		if err := unix.Mount(m.fsType, m.point, m.fsType, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %q: %w", m.fsType, m.point, err)
		}
	}
	return nil
}

// load loads a kernel module of the initramfs.
func load(name string) error {
	f, err := os.Open(filepath.Join("/modules", name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load module %q: %w", name, err)
	}
	return nil
}

// disk waits for the disk with a serial number.
func disk(serial string) (string, error) {
	return await("disk "+serial, "/sys/block/vd*/serial", serial, func(found string) string {
		return "/dev/" + filepath.Base(filepath.Dir(found))
	})
}

// await waits for a file that matches the pattern and holds the word.
func await(what, pattern, word string, device func(string) string) (string, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if _, gone := os.Stat(device(name)); err == nil && gone == nil && strings.TrimRight(string(text), "\n\x00") == word {
				return device(name), nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("find %s: not there after %s", what, patience)
		}
	}
}

// enterRoot mounts the root file system and the disks that belong to it, and makes it the root of everything.
func enterRoot() error {
	for _, d := range []struct {
		serial, point string
		flags         uintptr
	}{{wire.Root, "/sysroot", 0}, {wire.Modules, "/sysroot/usr/lib/modules", unix.MS_RDONLY}, {wire.Files, "/sysroot/vm", 0}} {
		device, err := disk(d.serial)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(d.point, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(device, d.point, "ext4", d.flags, ""); err != nil {
			return fmt.Errorf("mount disk %q: %w", d.serial, err)
		}
	}
	for _, m := range early {
		if err := unix.Mount(m.point, "/sysroot"+m.point, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %q: %w", m.point, err)
		}
	}
	if err := unix.Mount("tmpfs", "/sysroot/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	// Tests make their files there: on the root file system, as a node's kubelet has them.
	if err := os.Chmod("/sysroot/tmp", 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := copyFile("/sysroot"+self, "/init"); err != nil {
		return err
	}
	if err := os.Chdir("/sysroot"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	// As systemd does it.
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// link lets files of the disk of files be found where the host wants them.
func link(links map[string]string) error {
	for path, name := range links {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join("/vm", name), path); err != nil {
			return err
		}
	}
	return nil
}
