// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/lock"
)

// store is the folder of kernels and images that are made once. Each lies in a folder of its own that appears when it is whole.
type store struct{ dir string }

// format is part of the name of all that a store keeps: a change of how it is made takes a new one.
const format = "1"

func openStore() (store, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return store{}, fmt.Errorf("find cache folder: %w", err)
	}
	s := store{filepath.Join(cache, "kubediag", "vm")}
	return s, os.MkdirAll(s.dir, 0o755)
}

// keep returns the folder of that name, which make has filled now or before. Programs that want it at the same time take turns.
func (s store) keep(ctx context.Context, name string, make func(context.Context, archive, string) error) (string, error) {
	dir := filepath.Join(s.dir, name+"-"+format)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	turn, err := lock.Take(ctx, filepath.Join(s.dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer turn.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchLimit, fmt.Errorf("not done within %s", fetchLimit))
	defer cancel()
	if err := s.fill(ctx, dir, make); err != nil {
		return "", fmt.Errorf("make %s: %w", name, errors.Join(context.Cause(ctx), err))
	}
	return dir, nil
}

// fetchLimit is how long it may take to fetch the packages of a kernel or an image, and to make it of them.
const fetchLimit = 20 * time.Minute

// fill makes dir. The caller has the turn.
func (s store) fill(ctx context.Context, dir string, make func(context.Context, archive, string) error) error {
	if err := debian.Install(ctx, "depmod", "xz", "mkfs.ext4"); err != nil {
		return err
	}
	a, err := openArchive(ctx, filepath.Join(s.dir, "apt"))
	if err != nil {
		return err
	}
	// No other process is at work here: any other was killed before it had finished its work.
	unfinished := filepath.Join(s.dir, ".unfinished")
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(unfinished)
	if err := make(ctx, a, unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, dir)
}

// kernel is what a store keeps of one.
type kernel struct {
	dir     string
	release string // such as 5.10.0-46-cloud-amd64
}

func (k kernel) image() string   { return filepath.Join(k.dir, "vmlinuz") }
func (k kernel) modules() string { return filepath.Join(k.dir, "modules.ext4") }

// kernel returns the kernel of a version such as 5.10.
func (s store) kernel(ctx context.Context, version string) (kernel, error) {
	dir, err := s.keep(ctx, "kernel-"+version, func(ctx context.Context, a archive, dir string) error {
		return unpackKernel(ctx, a, version, dir)
	})
	if err != nil {
		return kernel{}, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	return kernel{dir, string(release)}, err
}

// unpackKernel lays into dir the kernel, its release, the modules that a machine boots with, and an image of all modules.
func unpackKernel(ctx context.Context, a archive, version, dir string) error {
	name, err := a.kernelPackage(ctx, version)
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if err := a.unpack(ctx, tree, name); err != nil {
		return err
	}
	release := strings.TrimPrefix(name, "linux-image-")
	modules := filepath.Join(tree, "lib/modules", release)
	if _, err := command(ctx, modules, "find", ".", "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"); err != nil {
		return err
	}
	if _, err := command(ctx, "", "depmod", "-b", tree, release); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "boot", "vmlinuz-"+release), filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	if err := keepDrivers(modules, filepath.Join(dir, "drivers")); err != nil {
		return err
	}
	if err := makeExt4(ctx, filepath.Join(tree, "lib/modules"), filepath.Join(dir, "modules.ext4"), 16); err != nil {
		return err
	}
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "release"), []byte(release), 0o644)
}

// drivers are the modules that a machine needs before it has a disk, where they are not built in.
var drivers = []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_rng"}

// keepDrivers copies the drivers, and the modules that they need, and names them in the order in which they are loaded.
func keepDrivers(modules, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return err
	}
	var order []string
	for _, driver := range drivers {
		for l := range strings.Lines(string(text)) {
			path, needs, _ := strings.Cut(strings.TrimSpace(l), ":")
			if strings.TrimSuffix(filepath.Base(path), ".ko") != driver {
				continue
			}
			all := append([]string{path}, strings.Fields(needs)...)
			slices.Reverse(all)
			for _, m := range all {
				if name := filepath.Base(m); !slices.Contains(order, name) {
					order = append(order, name)
					if err := os.Link(filepath.Join(modules, m), filepath.Join(to, name)); err != nil {
						return err
					}
				}
			}
		}
	}
	return os.WriteFile(filepath.Join(to, "order"), []byte(strings.Join(order, "\n")), 0o644)
}

// basic are the packages of every root file system.
var basic = []string{
	"base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "diffutils", "e2fsprogs", "findutils", "grep", "iproute2",
	"kmod", "libc-bin", "mount", "procps", "sed", "tar", "util-linux", "usr-is-merged",
}

// skeleton are the folders of a root file system that no package brings.
var skeleton = []string{
	"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/lib/modules", "dev", "proc", "sys", "run", "tmp", "root", "home", "mnt", "opt", "srv",
	"var/tmp", "vm",
}

// root returns the image of a root file system with the packages.
func (s store) root(ctx context.Context, packages []string) (string, error) {
	all := slices.Concat(basic, packages)
	slices.Sort(all)
	all = slices.Compact(all)
	key := sha256.Sum256([]byte(strings.Join(slices.Concat(all, skeleton), " ")))
	dir, err := s.keep(ctx, "root-"+hex.EncodeToString(key[:6]), func(ctx context.Context, a archive, dir string) error {
		return makeRoot(ctx, a, all, dir)
	})
	return filepath.Join(dir, "root.ext4"), err
}

// makeRoot lays the image into dir, and beside it the list of what is in it.
func makeRoot(ctx context.Context, a archive, packages []string, dir string) error {
	all, err := a.closure(ctx, packages)
	if err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	for _, sub := range skeleton {
		if err := os.MkdirAll(filepath.Join(tree, sub), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(tree, name)); err != nil {
			return err
		}
	}
	if err := a.unpack(ctx, tree, all...); err != nil {
		return err
	}
	if err := configure(tree); err != nil {
		return err
	}
	if err := makeExt4(ctx, tree, filepath.Join(dir, "root.ext4"), 2048); err != nil {
		return err
	}
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "packages"), []byte(strings.Join(all, "\n")+"\n"), 0o644)
}

// configure does what matters here of what the scripts of the packages would have done.
func configure(tree string) error {
	for name, content := range map[string]string{
		"etc/hosts": "127.0.0.1 localhost vm\n", "etc/hostname": "vm\n", "etc/machine-id": "uninitialized\n", "etc/fstab": "", "etc/resolv.conf": "",
	} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"passwd", "group"} {
		text, err := os.ReadFile(filepath.Join(tree, "usr/share/base-passwd", name+".master"))
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, []byte(":*:"), []byte(":x:"))
		if err := os.WriteFile(filepath.Join(tree, "etc", name), text, 0o644); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"bin/sh": "dash", "usr/bin/awk": "mawk"} {
		if err := os.Symlink(to, filepath.Join(tree, name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// makeExt4 makes an image of a tree, with as many megabytes to spare. Nothing is mounted for it.
func makeExt4(ctx context.Context, tree, image string, spare int64) error {
	size := spare << 20
	err := filepath.WalkDir(tree, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err == nil {
			size += (st.Size()+4095)&^4095 + 512 // its blocks and its inode
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("measure tree: %w", err)
	}
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size + size/8); err != nil {
		return err
	}
	_, err = command(ctx, "", "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", "-d", tree, image)
	return err
}

// writeCPIO writes one file of an archive as the kernel reads it ("newc"). A name with a slash at its end is a directory.
func writeCPIO(out *bufio.Writer, name string, content io.Reader, size int64) error {
	mode := 0o100755
	if strings.HasSuffix(name, "/") {
		mode = 0o40755
	}
	name = strings.TrimSuffix(name, "/") + "\x00"
	fmt.Fprintf(out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name), 0)
	_, _ = out.WriteString(name + strings.Repeat("\x00", (4-(110+len(name))%4)%4))
	if _, err := io.Copy(out, content); err != nil {
		return err
	}
	_, err := out.WriteString(strings.Repeat("\x00", int((4-size%4)%4)))
	return err
}
