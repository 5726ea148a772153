// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"

	"kubediag.org/kubediag/test/lock"
)

// base is short because a Unix socket's path has 107 bytes at most, and fixed because Sweep must find the remains of
// others.
const base = "/tmp"

const dirPrefix = "kdcluster-"

// state has the facts that are needed to take a cluster down when its starter is gone.
type state struct {
	Name    string `json:"name,omitempty"`
	Kubelet string `json:"kubelet,omitempty"`
	// Root is the resolved path of a kubelet root outside the cluster's folder, and RootMounts counts the mounts that
	// were on it before; they are the caller's.
	Root       string `json:"root,omitempty"`
	RootMounts int    `json:"rootMounts,omitempty"`
}

func (s state) write(dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode cluster state: %w", err)
	}
	path := filepath.Join(dir, "state.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	return os.Rename(path+".new", path) // so that no process ever reads half of it
}

// readState returns the zero value for a cluster that ended before it wrote one: it had nothing outside its folder.
func readState(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read cluster state: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("decode cluster state: %w", err)
	}
	return s, nil
}

// makeKubeletRoot makes the kubelet's root, or checks the caller's, and writes down the facts that tear-down needs.
func (c *Cluster) makeKubeletRoot() error {
	s := state{Name: c.o.Name, Kubelet: c.o.Kubelet}
	if c.o.KubeletRoot == "" {
		c.o.KubeletRoot = c.path("kubelet")
		if c.o.KubeletDisk {
			return errors.Join(s.write(c.dir), os.Mkdir(c.path("disk"), 0o755), os.Symlink("disk", c.o.KubeletRoot))
		}
		return errors.Join(s.write(c.dir), os.Mkdir(c.o.KubeletRoot, 0o755))
	}
	var err error
	if s.Root, err = filepath.EvalSymlinks(c.o.KubeletRoot); err != nil {
		return fmt.Errorf("resolve option KubeletRoot: %w", err)
	}
	entries, err := os.ReadDir(s.Root)
	if err != nil {
		return fmt.Errorf("read option KubeletRoot: %w", err)
	}
	for _, e := range entries {
		if e.Name() != lostAndFound {
			return fmt.Errorf("check option KubeletRoot: %q is not empty", c.o.KubeletRoot)
		}
	}
	on, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(s.Root))
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	s.RootMounts = len(on)
	return s.write(c.dir)
}

// mountDisk mounts the disk of option KubeletDisk where the kubelet's root leads. The loop device goes when the mount
// does, so the tear-down need not know of either.
func (c *Cluster) mountDisk(ctx context.Context) error {
	if !c.o.KubeletDisk {
		return nil
	}
	image := c.path("disk.ext4")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<30)); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if err := c.run(ctx, "mkfs.ext4", "-q", image); err != nil {
		return err
	}
	return c.run(ctx, "mount", "-o", "loop", image, c.path("disk"))
}

// lostAndFound is in a new file system from the start.
const lostAndFound = "lost+found"

// passable lets others through a folder whose entries they know, and not list it.
const passable = 0o011

// clusterDirs lists the folders of this user's clusters, dead and alive.
func clusterDirs() ([]string, error) {
	all, err := filepath.Glob(filepath.Join(base, dirPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("list cluster folders: %w", err)
	}
	var dirs []string
	for _, dir := range all {
		st, err := os.Lstat(dir)
		if err == nil && st.IsDir() && st.Mode().Perm()&^passable == 0o700 && ownedByUs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// Sweep takes down the remains of clusters without an owner, because their owner and their reaper were both killed. It
// leaves living clusters, and other users', alone. It names on standard error the parts that it cannot take down, and
// returns no error for them.
func Sweep() error {
	dirs, err := clusterDirs()
	if err != nil {
		return err
	}
	lock.SweepFolders(dirs, tearDown)
	return nil
}
