// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// serveRole is a role: a FUSE file system that keeps everything in memory, at args[0]. It has the directories of the
// other arguments, each with a file "data" that says args[1]. To look "cmd:OP:A:B" up at its root does to it what
// another client of the same storage would do, and the kernel learns nothing of it. The file system's type is this
// test's alone.
func serveRole(args []string, ready func(string)) error {
	root := &memoryDir{}
	zero := time.Duration(0)
	forged := os.Getenv(volumetest.NameEnv)
	_, err := fs.Mount(args[0], root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: forged == "", FsName: "mem",
			Name: cmp.Or(forged, nameOf(os.Getppid()))},
		OnAdd: func(ctx context.Context) {
			for _, name := range args[2:] {
				root.makeTree(ctx, name, args[1])
			}
		},
	})
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil // the kernel aborts the requests that still wait
}

// nameOf is what the file system is called that a test process has had served.
func nameOf(pid int) string { return "memory" + strconv.Itoa(pid) }

// memoryDir is a directory of the file system.
type memoryDir struct {
	fs.Inode
	gone bool
}

var (
	_ fs.NodeLookuper  = (*memoryDir)(nil)
	_ fs.NodeGetattrer = (*memoryDir)(nil)
	_ fs.NodeMkdirer   = (*memoryDir)(nil)
	_ fs.NodeCreater   = (*memoryDir)(nil)
	_ fs.NodeUnlinker  = (*memoryDir)(nil)
	_ fs.NodeRmdirer   = (*memoryDir)(nil)
)

// makeTree makes a directory, those above it, and the file in it.
func (d *memoryDir) makeTree(ctx context.Context, name, content string) {
	at := &d.Inode
	for part := range strings.SplitSeq(name, "/") {
		next := at.GetChild(part)
		if next == nil {
			next = at.NewPersistentInode(ctx, &memoryDir{}, fs.StableAttr{Mode: fuse.S_IFDIR})
			at.AddChild(part, next, false)
		}
		at = next
	}
	file := at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(content)}, fs.StableAttr{})
	at.AddChild("data", file, true)
}

func (d *memoryDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, sys.Errno) {
	if d.IsRoot() && strings.HasPrefix(name, "cmd:") {
		d.runCommand(ctx, strings.Split(name, ":")[1:])
		return nil, sys.ENOENT
	}
	child := d.GetChild(name)
	if child == nil {
		return nil, sys.ENOENT
	}
	var attr fuse.AttrOut
	if get, ok := child.Operations().(fs.NodeGetattrer); ok {
		if errno := get.Getattr(ctx, nil, &attr); errno != 0 {
			return nil, errno
		}
	}
	out.Attr = attr.Attr
	return child, 0
}

func (d *memoryDir) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) sys.Errno {
	out.Mode, out.Nlink = 0o755, 2
	if d.gone {
		out.Nlink = 0
	}
	return 0
}

func (d *memoryDir) Mkdir(ctx context.Context, _ string, _ uint32, _ *fuse.EntryOut) (*fs.Inode, sys.Errno) {
	return d.NewPersistentInode(ctx, &memoryDir{}, fs.StableAttr{Mode: fuse.S_IFDIR}), 0
}

func (d *memoryDir) Create(ctx context.Context, _ string, _, _ uint32, _ *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, sys.Errno) {
	return d.NewPersistentInode(ctx, &fs.MemRegularFile{}, fs.StableAttr{}), nil, 0, 0
}

func (d *memoryDir) Unlink(context.Context, string) sys.Errno { return 0 }

func (d *memoryDir) Rmdir(_ context.Context, name string) sys.Errno {
	if at, ok := d.GetChild(name).Operations().(*memoryDir); ok {
		at.gone = true
	}
	return 0
}

// runCommand does mv:FROM:TO, make:NAME:CONTENT, link:NAME (to ../../other), link:NAME:TO, or rm:NAME. A path has dots
// for slashes.
func (d *memoryDir) runCommand(ctx context.Context, args []string) {
	path := func(i int) string { return strings.ReplaceAll(args[i], ".", "/") }
	switch args[0] {
	case "mv":
		from, name := d.parentOf(path(1))
		to, other := d.parentOf(path(2))
		from.MvChild(name, to, other, true)
	case "make":
		d.makeTree(ctx, path(1), args[2])
	case "link":
		to, name := d.parentOf(path(1))
		target := "../../other"
		if len(args) > 2 {
			target = path(2)
		}
		link := &fs.MemSymlink{Data: []byte(target)}
		to.AddChild(name, to.NewPersistentInode(ctx, link, fs.StableAttr{Mode: fuse.S_IFLNK}), true)
	case "rm":
		from, name := d.parentOf(path(1))
		if at, ok := from.GetChild(name).Operations().(*memoryDir); ok {
			at.gone = true
		}
		from.RmChild(name)
	}
}

// parentOf finds the directory of an entry.
func (d *memoryDir) parentOf(name string) (*fs.Inode, string) {
	at := &d.Inode
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		at = at.GetChild(part)
	}
	return at, parts[len(parts)-1]
}
