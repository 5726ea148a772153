// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/csi/staged"
)

// mountTimeout bounds how long a daemon takes to mount its file system.
const mountTimeout = 20 * time.Second

// restore mounts every volume again that was staged when the last driver ended, unless there is a file that forbids it.
func (d *driver) restore() error {
	if _, err := os.Lstat(filepath.Join(d.dir, staged.Leave)); err == nil {
		return nil
	}
	all, err := staged.All(d.dir)
	for _, v := range all {
		err = errors.Join(err, d.stage(v.Handle, v.Path))
	}
	return err
}

// stage has a daemon mount a volume at path and writes that down. The mount that a dead daemon left there goes away
// first.
func (d *driver) stage(handle, path string) error {
	if alive(path) {
		return nil
	}
	if err := unmount(path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return fmt.Errorf("make staging path: %w", err)
	}
	pid, err := d.start(path)
	if err != nil {
		return err
	}
	return staged.Volume{Handle: handle, Path: path, PID: pid, Mounted: time.Now()}.Save(d.dir)
}

// start starts a daemon and returns when it has mounted its file system. Nothing is asked of that.
func (d *driver) start(path string) (pid int, err error) {
	var args []string
	for _, arg := range d.command {
		args = append(args, strings.ReplaceAll(arg, "{}", path))
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start daemon: %w", err)
	}
	log.Println("daemon", cmd.Process.Pid, "of", path, "starts:", args)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		log.Println("daemon", cmd.Process.Pid, "of", path, "ended:", cmd.ProcessState)
	}()
	late := time.After(mountTimeout)
	for {
		if on, err := mounts(path); err != nil || len(on) > 0 {
			return cmd.Process.Pid, err
		}
		select {
		case err := <-ended:
			return 0, fmt.Errorf("run daemon %q: %w", args, errors.Join(err, errors.New("ended before it had mounted anything")))
		case <-late:
			return 0, errors.Join(fmt.Errorf("wait for daemon %q: nothing is mounted", args), cmd.Process.Kill())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mounts lists the mounts at path itself.
func mounts(path string) ([]*mountinfo.Info, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
}

// resolve resolves the links in all but the last name of path, which may be dead.
func resolve(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil // nothing can be mounted there
	}
	return filepath.Join(dir, filepath.Base(path)), err
}

// alive says whether something is mounted at path that answers. A client may have the kernel keep attributes for a minute, so that the
// root has them although the daemon is gone.
func alive(path string) bool {
	on, err := mounts(path)
	if err != nil || len(on) == 0 {
		return false
	}
	var st unix.Statfs_t
	_, err = os.Stat(path)
	return err == nil && !errors.Is(unix.Statfs(path, &st), unix.ENOTCONN)
}

// unmount unmounts everything at path, dead or alive.
func unmount(path string) error {
	on, err := mounts(path)
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	for range on {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %q: %w", path, err)
		}
	}
	return nil
}
