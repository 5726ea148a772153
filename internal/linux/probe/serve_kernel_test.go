// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) {
	subprocess.Main(probe.Job)
	kerneltest.Main(m, kerneltest.Roles{"serve": serveRole, "space": namespaceRole})
}

// serveRole is a role: it serves a FUSE file system on each directory that is named,
// "DIR" or "DIR=MANNERS".
func serveRole(args []string, ready func(string)) error {
	for _, arg := range args {
		dir, manners, _ := strings.Cut(arg, "=")
		server, err := gofuse.NewServer(newTestFileSystem(manners), dir, &gofuse.MountOptions{
			AllowOther: true, DirectMountStrict: true, FsName: "server", Name: "kubediag", SingleThreaded: true,
		})
		if err != nil {
			return err
		}
		go server.Serve()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// testFileSystem is a file system with a few names, and manners: "hang" never answers a
// getattr, "late DURATION" answers one late, "when FILE" once there is such a
// file, "errno N" with an error, "wrong" says that its directories are files,
// "evicted" is as a client of Ceph that was thrown out, "moving" finds another
// directory at every look.
type testFileSystem struct {
	gofuse.RawFileSystem
	manners, argument string

	mu   sync.Mutex
	next uint64
}

func newTestFileSystem(manners string) *testFileSystem {
	kind, argument, _ := strings.Cut(manners, " ")
	return &testFileSystem{RawFileSystem: gofuse.NewDefaultRawFileSystem(), manners: kind, argument: argument, next: 1000}
}

const (
	nodeDir = iota + 2
	nodeFile
	nodeOut    // a link to "/etc"
	nodeUp     // a link to ".."
	nodeInside // a link to "dir"
	nodeSub    // a directory in any other
)

var nodes = map[string]uint64{"dir": nodeDir, "file": nodeFile, "out": nodeOut, "up": nodeUp, "inside": nodeInside, "sub": nodeSub}

func (f *testFileSystem) attr(node uint64, out *gofuse.Attr) {
	out.Ino, out.Nlink, out.Mode = node, 1, gofuse.S_IFDIR|0o755
	switch node {
	case nodeFile:
		out.Mode = gofuse.S_IFREG | 0o644
	case nodeOut, nodeUp, nodeInside:
		out.Mode = gofuse.S_IFLNK | 0o777
	default:
		out.Nlink = 2
	}
}

func (f *testFileSystem) Lookup(_ <-chan struct{}, _ *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	node, ok := nodes[name]
	if !ok {
		return gofuse.ENOENT
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next++; f.manners == "moving" && name == "dir" {
		node = f.next
	}
	out.NodeId = node
	f.attr(node, &out.Attr)
	return gofuse.OK
}

func (f *testFileSystem) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	f.attr(in.NodeId, &out.Attr)
	switch f.manners {
	case "hang":
		select {}
	case "late":
		late, _ := time.ParseDuration(f.argument)
		<-time.After(late)
	case "when":
		for _, err := os.Stat(f.argument); err != nil; _, err = os.Stat(f.argument) {
			time.Sleep(time.Millisecond)
		}
	case "errno":
		n, _ := strconv.Atoi(f.argument)
		return gofuse.Status(n)
	case "wrong":
		out.Mode = gofuse.S_IFREG | 0o644
	case "evicted":
		return gofuse.ENOENT
	}
	return gofuse.OK
}

func (f *testFileSystem) Readlink(_ <-chan struct{}, in *gofuse.InHeader) ([]byte, gofuse.Status) {
	switch in.NodeId {
	case nodeOut:
		return []byte("/etc"), gofuse.OK
	case nodeUp:
		return []byte(".."), gofuse.OK
	}
	return []byte("dir"), gofuse.OK
}

func (f *testFileSystem) OpenDir(<-chan struct{}, *gofuse.OpenIn, *gofuse.OpenOut) gofuse.Status {
	return gofuse.OK
}

func (f *testFileSystem) ReadDir(<-chan struct{}, *gofuse.ReadIn, *gofuse.DirEntryList) gofuse.Status {
	if f.manners == "evicted" {
		return gofuse.Status(sys.ESHUTDOWN)
	}
	return gofuse.OK
}

// ReadDirPlus shows one directory, and so has the kernel look at it.
func (f *testFileSystem) ReadDirPlus(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	if f.manners == "evicted" {
		return gofuse.Status(sys.ESHUTDOWN)
	}
	if in.Offset > 0 {
		return gofuse.OK
	}
	entry := out.AddDirLookupEntry(gofuse.DirEntry{Name: "dir", Mode: gofuse.S_IFDIR, Ino: nodeDir, Off: 1})
	return f.Lookup(nil, nil, "dir", entry)
}

func (f *testFileSystem) StatFs(<-chan struct{}, *gofuse.InHeader, *gofuse.StatfsOut) gofuse.Status {
	return gofuse.OK
}

// fileServer is a process that serves file systems at mounts of the test.
type fileServer struct {
	*kerneltest.Actor
	dirs   []string
	minors []uint32 // of their devices
}

// mountFUSE mounts one file system for each of the manners.
func mountFUSE(t testing.TB, manners ...string) *fileServer {
	t.Helper()
	base := t.TempDir()
	s := &fileServer{}
	var args []string
	for i, m := range manners {
		dir := filepath.Join(base, strconv.Itoa(i))
		must(t, os.Mkdir(dir, 0o700))
		s.dirs, args = append(s.dirs, dir), append(args, dir+"="+m)
	}
	// Runs after the process has ended, which it can do once no other process waits for it.
	t.Cleanup(func() {
		for _, dir := range s.dirs {
			systest.UnmountPath(dir, true)
		}
	})
	s.Actor = kerneltest.StartWith(t, nil, "serve", args...)
	for _, dir := range s.dirs {
		fd, err := sys.Lookup(dir)
		must(t, err)
		st, err := fd.Stat(sys.StatIno)
		fd.Close()
		must(t, err)
		s.minors = append(s.minors, st.Minor)
	}
	t.Cleanup(func() {
		s.signalServer("CONT")
		for i := range s.dirs {
			s.abortConnection(t, i)
		}
	})
	return s
}

// signalServer sends a signal to the process, unless that has been killed.
func (s *fileServer) signalServer(name string) {
	_ = exec.Command("kill", "-"+name, strconv.Itoa(s.PID)).Run()
}

// abortConnection ends a connection, and every wait for it. If a test has unmounted it, its number may be another
// test's by now.
func (s *fileServer) abortConnection(t testing.TB, i int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	must(t, err)
	number := fmt.Sprintf(" 0:%d ", s.minors[i])
	own := func(line string) bool { return strings.Contains(line, number) && strings.Contains(line, s.dirs[i]+" ") }
	if !slices.ContainsFunc(strings.Split(string(text), "\n"), own) {
		return
	}
	c, err := fuse.Open()
	must(t, err)
	defer c.Close()
	_ = c.Abort(s.minors[i]) // it may be gone by now
}

// countWaiting is how many requests to a file system wait.
func (s *fileServer) countWaiting(t testing.TB, i int) int {
	t.Helper()
	n, err := s.readWaiting(i)
	must(t, err)
	return n
}

func (s *fileServer) readWaiting(i int) (waiting int, err error) {
	c, err := fuse.Open()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	connection, err := c.Connection(s.minors[i])
	return connection.Waiting, err
}

// whenAsked acts beside the test as soon as a request to the first file system
// waits, and reports how that went; an error too if ctx ends before.
func (s *fileServer) whenAsked(ctx context.Context, act func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if n, err := s.readWaiting(0); err != nil {
				done <- err
				return
			} else if n > 0 {
				done <- act()
				return
			}
		}
		done <- fmt.Errorf("nothing was asked: %w", ctx.Err())
	}()
	return done
}

// bindNew makes source visible at a new place.
func bindNew(t testing.TB, source string) string {
	t.Helper()
	st, err := os.Stat(source)
	must(t, err)
	point := filepath.Join(t.TempDir(), "point")
	if st.IsDir() {
		must(t, os.Mkdir(point, 0o700))
	} else {
		must(t, os.WriteFile(point, nil, 0o600))
	}
	must(t, sys.BindMount(source, point))
	t.Cleanup(func() { systest.UnmountPath(point, true) })
	return point
}

// tableText lists the mounts below the test's own temporary directory, or from there.
func tableText(t testing.TB, point string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	must(t, err)
	own := strings.Join(strings.SplitAfter(point, "/")[:3], "")
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, own) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		t.Fatalf("nothing is mounted below %s", own)
	}
	return strings.Join(lines, "")
}

// awaitNoProcess waits until a Prober's process is gone.
func awaitNoProcess(t testing.TB, r *subprocess.Runner) {
	t.Helper()
	kerneltest.Await(t, "every process is gone", func() bool { return r.Lingering() == 0 })
}

var must = kerneltest.Must

// namespaceRole is a role: a mount namespace with a tmpfs at the point that is named.
func namespaceRole(args []string, ready func(string)) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	if err := sys.NewMount("none", args[0], "tmpfs", ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}
