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
// lookup of a name that begins with deletePrefix has it delete a directory, as another client would: see Scene.Delete.
const (
	fail         = "fail-"
	deletePrefix = "delete:"
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

// serve is a role: the daemon of a file system that is kept in memory, at args[0], with a file "data" that says args[2] in
// directory args[1]. The kernel is told to remember nothing.
func serve(args []string, ready func(string)) error {
	if _, err := mountMemory(&mood{}, args[0], args[1], args[2]); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil // the kernel aborts the requests that still wait
}

// mountMemory mounts the file system and begins to serve it.
func mountMemory(m *mood, dir, way, text string) (*fuse.Server, error) {
	root, zero, forged := &directory{mood: m}, time.Duration(0), os.Getenv(NameEnv)
	return fs.Mount(dir, root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: forged == "", FsName: "mem", Name: cmp.Or(forged, Name),
			Logger: log.New(io.Discard, "", 0), // of answers that come after the connection has ended
		},
		OnAdd: func(ctx context.Context) {
			at := &root.Inode
			for name := range strings.SplitSeq(way, "/") {
				at = at.Operations().(*directory).add(ctx, name)
			}
			at.AddChild("data", at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(text)}, fs.StableAttr{}), false)
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
	s.server, err = mountMemory(s.mood, dir, way, text)
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
