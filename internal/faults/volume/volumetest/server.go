// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// fail begins the names whose lookup at the root has the daemon answer everything with an error, whose number follows. A
// lookup of a name that begins with deletePrefix has it delete a directory, as another client would: see Scene.Delete.
const (
	fail         = "fail-"
	deletePrefix = "delete:"
)

// directory is one of the file system.
type directory struct {
	fs.Inode
	failure *atomic.Int32 // the error number that all answer with; 0: none
	// deleted is whether the directory alone was deleted, errno how it answers since: 0 is as a directory without links.
	deleted atomic.Bool
	errno   atomic.Int32
}

var (
	_ fs.NodeLookuper  = (*directory)(nil)
	_ fs.NodeGetattrer = (*directory)(nil)
	_ fs.NodeMkdirer   = (*directory)(nil)
)

// Lookup finds a directory or a file.
func (d *directory) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, sys.Errno) {
	if number, ok := strings.CutPrefix(name, fail); ok && d.IsRoot() {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, sys.EINVAL
		}
		d.failure.Store(int32(n))
	}
	if command, ok := strings.CutPrefix(name, deletePrefix); ok {
		d.remove(ctx, command)
		return nil, sys.ENOENT
	}
	child := d.GetChild(name)
	switch errno := sys.Errno(d.failure.Load()); {
	case errno != 0:
		return nil, errno
	case child == nil:
		return nil, sys.ENOENT
	}
	var attr fuse.AttrOut
	errno := child.Operations().(fs.NodeGetattrer).Getattr(ctx, nil, &attr)
	out.Attr = attr.Attr
	return child, errno
}

// Getattr has the attributes of any directory.
func (d *directory) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) sys.Errno {
	if errno := sys.Errno(d.failure.Load()); errno != 0 {
		return errno
	}
	out.Mode, out.Nlink = 0o755, 2
	if d.deleted.Load() {
		out.Nlink = 0
	}
	return sys.Errno(d.errno.Load())
}

// Mkdir makes a directory.
func (d *directory) Mkdir(ctx context.Context, name string, _ uint32, _ *fuse.EntryOut) (*fs.Inode, sys.Errno) {
	return d.add(ctx, name), 0
}

func (d *directory) add(ctx context.Context, name string) *fs.Inode {
	child := d.NewPersistentInode(ctx, &directory{failure: d.failure}, fs.StableAttr{Mode: fuse.S_IFDIR})
	d.AddChild(name, child, true)
	return child
}

// remove does a command: the name of a directory, the error number that it answers with from then on, and whether another
// one is made in its place.
func (d *directory) remove(ctx context.Context, command string) {
	var name, again string
	var errno int32
	if n, _ := fmt.Sscanf(strings.ReplaceAll(command, ":", " "), "%s %d %s", &name, &errno, &again); n != 3 {
		return
	}
	if child, ok := d.GetChild(name).Operations().(*directory); ok {
		child.deleted.Store(true)
		child.errno.Store(errno)
	}
	if d.RmChild(name); again == "true" {
		d.add(ctx, name)
	}
}

// serve is a role: the daemon of a file system that is kept in memory, at args[0], with a file "data" that says args[2] in
// directory args[1]. The kernel is told to remember nothing.
func serve(args []string, ready func(string)) error {
	root, zero, forged := &directory{failure: &atomic.Int32{}}, time.Duration(0), os.Getenv(NameEnv)
	_, err := fs.Mount(args[0], root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: forged == "", FsName: "mem", Name: cmp.Or(forged, Name)},
		OnAdd: func(ctx context.Context) {
			at := &root.Inode
			for name := range strings.SplitSeq(args[1], "/") {
				at = at.Operations().(*directory).add(ctx, name)
			}
			at.AddChild("data", at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(args[2])}, fs.StableAttr{}), false)
		},
	})
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil // the kernel aborts what still waits
}
