// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/reap"
)

// tearDown removes everything of the cluster in dir: processes first, since they make the rest, and files last, only
// when nothing is mounted among them any more, since a mount could lead to files of any user.
func tearDown(dir string) error {
	s, err := readState(dir)
	if err != nil {
		return err
	}
	sockets := shimSockets(dir)
	if err := killAll(dir); err != nil {
		return err
	}
	sockets = append(sockets, shimSockets(dir)...)
	err = errors.Join(removeBridge(dir), removeCgroups(filepath.Base(dir)), removeSharedFiles(dir, sockets), s.releaseDevicePlugins())
	if uerr := errors.Join(unmountAll(dir, 0), s.emptyRoot()); uerr != nil {
		return errors.Join(err, uerr)
	}
	return errors.Join(err, removeLoops(dir), os.RemoveAll(dir))
}

// killAll kills the cluster's processes.
func killAll(dir string) error {
	return reap.All(dir, func(pid int) bool { return belongs(pid, dir) })
}

// belongs says whether a process is one of the daemons and their children, by its environment, or of the containers,
// by its cgroup. A process that ended meanwhile, or a zombie, does not count.
func belongs(pid int, dir string) bool {
	return slices.ContainsFunc(reap.Threads(pid), func(thread string) bool {
		env, err := os.ReadFile(filepath.Join(thread, "environ"))
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), owner+"="+dir) {
			return true
		}
		cgroups, err := os.ReadFile(filepath.Join(thread, "cgroup"))
		return err == nil && bytes.Contains(append(cgroups, '/'), []byte(":/"+filepath.Base(dir)+"/"))
	})
}

// removeBridge removes the bridge whose alias is the cluster's folder, and the pods' ends on it.
func removeBridge(dir string) error {
	aliases, err := filepath.Glob("/sys/class/net/*/ifalias")
	if err != nil {
		return fmt.Errorf("list network devices: %w", err)
	}
	var errs []error
	for _, path := range aliases {
		alias, _ := os.ReadFile(path) // a device that is gone has no alias
		if strings.TrimSpace(string(alias)) != dir {
			continue
		}
		bridge := filepath.Dir(path)
		ports, _ := os.ReadDir(filepath.Join(bridge, "brif"))
		for _, port := range ports {
			errs = append(errs, removeDevice(port.Name()))
		}
		errs = append(errs, removeDevice(filepath.Base(bridge)))
	}
	return errors.Join(errs...)
}

// removeDevice removes a network device. It may go by itself meanwhile: a pod's end does once the pod is dead.
func removeDevice(name string) error {
	ip, err := debian.LookPath("ip")
	if err != nil {
		return err
	}
	out, err := exec.Command(ip, "link", "delete", "dev", name).CombinedOutput()
	if _, serr := os.Stat("/sys/class/net/" + name); err != nil && !errors.Is(serr, fs.ErrNotExist) {
		return fmt.Errorf("remove device %q: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// removeCgroups removes the cgroup id and all below it from every hierarchy.
func removeCgroups(id string) error {
	roots, err := reap.CgroupRoots()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeCgroup(filepath.Join(root, id)))
	}
	return errors.Join(errs...)
}

// removeCgroup removes one cgroup from below. It stays busy for a moment after its last process died.
func removeCgroup(path string) error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		var dirs []string
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return err
		})
		for _, dir := range slices.Backward(dirs) {
			if rerr := os.Remove(dir); rerr != nil {
				err = rerr
			}
		}
		if _, serr := os.Stat(path); errors.Is(serr, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %q: %w", path, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// unmountAll unmounts everything at and below path, the last mount first, and leaves keep mounts on path itself.
func unmountAll(path string, keep int) error {
	for {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		if err != nil {
			return fmt.Errorf("read mount table: %w", err)
		}
		on := 0
		for _, m := range mounts {
			if m.Mountpoint == path {
				on++
			}
		}
		i := len(mounts) - 1
		for ; i >= 0 && mounts[i].Mountpoint == path && on <= keep; i-- {
		}
		if i < 0 {
			return nil
		}
		if err := unmount(mounts[i].Mountpoint); err != nil {
			return err
		}
	}
}

// emptyRoot gives a kubelet root outside the cluster's folder back as it was.
func (s state) emptyRoot() error {
	if s.Root == "" {
		return nil
	}
	if err := unmountAll(s.Root, s.RootMounts); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.Root)
	if err != nil {
		return fmt.Errorf("read kubelet root: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != lostAndFound {
			errs = append(errs, os.RemoveAll(filepath.Join(s.Root, e.Name())))
		}
	}
	return errors.Join(errs...)
}
