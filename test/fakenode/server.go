// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"context"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

const (
	// ShareName is the source of the file system of a share, and the second half of its type.
	ShareName = "stage"
	// ShareDir is the directory of the volume in it.
	ShareDir = "volume"

	shareFile = "data"

	serverRole    = "server"
	containerRole = "container"
)

// serve is a role: the daemon of one FUSE file system at each of the points args[1:], whose file says args[0]. The kernel
// is told to remember nothing. It answers with the time right before the first mount, in nanoseconds since 1970.
func serve(args []string, ready func(string)) error {
	began := time.Now()
	for _, point := range args[1:] {
		if err := serveAt(point, args[0]); err != nil {
			return err
		}
	}
	ready(strconv.FormatInt(began.UnixNano(), 10))
	kerneltest.WaitForEnd()
	return nil // the kernel aborts what still waits
}

func serveAt(point, content string) error {
	root, zero := &fs.Inode{}, time.Duration(0)
	_, err := fs.Mount(point, root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: ShareName, Name: ShareName, SingleThreaded: true},
		OnAdd: func(ctx context.Context) {
			dir := root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: fuse.S_IFDIR})
			root.AddChild(ShareDir, dir, false)
			dir.AddChild(shareFile, dir.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(content)}, fs.StableAttr{}), false)
		},
	})
	return err
}

// contain is a role: a process with a root directory of its own, made at args[0], in which the points args[1:] of the
// node are mounted as At says.
func contain(args []string, ready func(string)) error {
	root := args[0]
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("root", root, "tmpfs", 0, "")
	}
	for i, point := range args[1:] {
		at := filepath.Join(root, At(i))
		if err == nil {
			err = syscall.Mkdir(at, 0o755)
		}
		if err == nil {
			err = syscall.Mount(point, at, "", syscall.MS_BIND, "")
		}
	}
	if err == nil {
		err = syscall.Chdir(root)
	}
	if err == nil {
		err = syscall.PivotRoot(".", ".")
	}
	if err == nil {
		err = syscall.Unmount(".", syscall.MNT_DETACH) // the old one, on top
	}
	if err == nil {
		err = syscall.Chdir("/")
	}
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// At is where the container of a pod has its ith volume.
func At(i int) string { return "/data-" + strconv.Itoa(i) }
