// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	fusectl "kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// fail begins the names whose lookup at the root has the daemon answer everything with an error, whose number follows. A
// lookup of a name that begins with deletePrefix has it delete a directory, as another client would: see Scene.Delete. A lookup
// at the root of one that begins with commandPrefix has it change the directories: see Scene.Elsewhere.
const (
	fail          = "fail-"
	deletePrefix  = "delete:"
	commandPrefix = "cmd:"
)

// mood is how all of a file system answers.
type mood struct {
	failure atomic.Int32 // the error number; 0: none
	hangs   atomic.Bool  // it does not answer before released is closed
	// released is closed when the file system is given up. Nil: it never hangs.
	released chan struct{}
}

// wait returns when there is to be an answer.
func (m *mood) wait() {
	if m.hangs.Load() {
		<-m.released
	}
}

// directory is one of the file system.
type directory struct {
	fs.Inode
	*mood
	// deleted is whether the directory alone was deleted, errno how it answers since: 0 is as a directory without links.
	deleted atomic.Bool
	errno   atomic.Int32
}

var (
	_ fs.NodeLookuper  = (*directory)(nil)
	_ fs.NodeGetattrer = (*directory)(nil)
	_ fs.NodeMkdirer   = (*directory)(nil)
	_ fs.NodeCreater   = (*directory)(nil)
	_ fs.NodeUnlinker  = (*directory)(nil)
	_ fs.NodeRmdirer   = (*directory)(nil)
)

// Lookup finds a directory or a file.
func (d *directory) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, sys.Errno) {
	d.wait()
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
	if command, ok := strings.CutPrefix(name, commandPrefix); ok && d.IsRoot() {
		d.change(ctx, strings.Split(command, ":"))
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
	var errno sys.Errno
	if get, ok := child.Operations().(fs.NodeGetattrer); ok { // a link has none
		errno = get.Getattr(ctx, nil, &attr)
	}
	out.Attr = attr.Attr
	return child, errno
}

// Getattr has the attributes of any directory.
func (d *directory) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) sys.Errno {
	d.wait()
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
	child := d.NewPersistentInode(ctx, &directory{mood: d.mood}, fs.StableAttr{Mode: fuse.S_IFDIR})
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

// Create makes a file.
func (d *directory) Create(ctx context.Context, _ string, _, _ uint32, _ *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, sys.Errno) {
	return d.NewPersistentInode(ctx, &fs.MemRegularFile{}, fs.StableAttr{}), nil, 0, 0
}

// Unlink removes a file.
func (d *directory) Unlink(context.Context, string) sys.Errno { return 0 }

// Rmdir removes a directory.
func (d *directory) Rmdir(_ context.Context, name string) sys.Errno {
	d.GetChild(name).Operations().(*directory).deleted.Store(true)
	return 0
}

// makeTree makes a directory, those above it, and the file in it.
func (d *directory) makeTree(ctx context.Context, name, content string) {
	at := &d.Inode
	for part := range strings.SplitSeq(name, "/") {
		next := at.GetChild(part)
		if next == nil {
			next = at.Operations().(*directory).add(ctx, part)
		}
		at = next
	}
	at.AddChild("data", at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(content)}, fs.StableAttr{}), true)
}

// change does a command of Scene.Elsewhere.
func (d *directory) change(ctx context.Context, args []string) {
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
		from.Operations().(*directory).Rmdir(ctx, name)
		from.RmChild(name)
	}
}

// parentOf finds the directory of an entry.
func (d *directory) parentOf(name string) (*fs.Inode, string) {
	at := &d.Inode
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		at = at.GetChild(part)
	}
	return at, parts[len(parts)-1]
}

// typeOf is the type of the file systems that a process of a test has had served, after "fuse.". No other process of tests has it: a mount of
// one must not look like a copy of another's.
func typeOf(pid int) string { return "memory" + strconv.Itoa(pid) }

// serve is a role: the daemon of a file system that is kept in memory, at args[0], with a file "data" that says args[1] in each of
// the directories that follow. The kernel is told to remember nothing.
func serve(args []string, ready func(string)) error {
	if _, err := mountMemory(&mood{}, typeOf(os.Getppid()), args[0], args[1], args[2:]...); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil // the kernel aborts the requests that still wait
}

// mountMemory mounts the file system and begins to serve it.
func mountMemory(m *mood, fsType, dir, text string, ways ...string) (*fuse.Server, error) {
	root, zero, forged := &directory{mood: m}, time.Duration(0), os.Getenv(NameEnv)
	return fs.Mount(dir, root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: forged == "", FsName: "mem", Name: cmp.Or(forged, fsType),
			Logger: log.New(io.Discard, "", 0), // of answers that come after the connection has ended
		},
		OnAdd: func(ctx context.Context) {
			for _, way := range ways {
				root.makeTree(ctx, way, text)
			}
		},
	})
}

// Served is a file system as that of the role serve, which the process of the test serves itself: a process for each is too much for a test with many.
type Served struct {
	mood   *mood
	server *fuse.Server
	minor  uint32 // of its device
	killed bool
}

// Serve serves a file system at dir, with a file "data" that says text in the directory way. It is given up when the test ends.
func Serve(t testing.TB, dir, way, text string) *Served {
	t.Helper()
	s := &Served{mood: &mood{released: make(chan struct{})}}
	var err error
	s.server, err = mountMemory(s.mood, Name, dir, text, way)
	kerneltest.Must(t, err)
	at, err := sys.StatPath(dir, sys.StatIno)
	kerneltest.Must(t, err)
	s.minor = at.Minor
	t.Cleanup(func() { s.Kill(t) })
	return s
}

// Hang has it answer nothing any more.
func (s *Served) Hang() { s.mood.hangs.Store(true) }

// Kill has its connection end, as that of a daemon does that is killed.
func (s *Served) Kill(t testing.TB) {
	t.Helper()
	if s.killed {
		return
	}
	s.killed = true
	control, err := fusectl.Open()
	kerneltest.Must(t, err)
	defer func() { _ = control.Close() }() // it holds no data
	if err := control.Abort(s.minor); err != nil && !errors.Is(err, fusectl.ErrNoConnection) {
		t.Error(err)
	}
	close(s.mood.released)
	s.server.Wait()
}
