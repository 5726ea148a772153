// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

var must = kerneltest.Must

// mountAtPoint is the mount at a point, as a look would have it.
func mountAtPoint(t *testing.T, point string) mountns.Mount {
	t.Helper()
	table, err := mountns.Table(0)
	must(t, err)
	m, ok := table.Top(point)
	if !ok {
		t.Fatalf("nothing is mounted at %q", point)
	}
	ns, err := mountns.Self()
	must(t, err)
	return mountns.Mount{Mount: m, Namespace: ns}
}

// TestAbortOfWhatHasGone: the driver has mounted again since the connection was seen to hang, and the kernel has given
// the new connection the number of the old.
func TestAbortOfWhatHasGone(t *testing.T) {
	dir, agrees := t.TempDir(), func() error { return nil }
	control, err := fuse.Open()
	must(t, err)
	defer control.Close()
	old := kerneltest.FUSE(t, dir)
	was := mountAtPoint(t, dir)
	old.Kill()
	must(t, systest.UnmountPath(dir, true))
	kerneltest.FUSE(t, dir)
	now := mountAtPoint(t, dir)
	if now.Minor != was.Minor {
		t.Logf("the new connection has number %d, and the old one had %d", now.Minor, was.Minor)
		was.Minor = now.Minor
	}
	other := was
	other.Root = "/elsewhere"
	refused := map[string]mountns.Mount{"another root": other}
	// Before, all that distinguishes them is the request that waits: it keeps the old file system, and with it the
	// number.
	if sys.HasUniqueMountID.Probe() == nil {
		refused["another number"] = mountns.Mount{Mount: was.Mount, Namespace: was.Namespace, Unique: 1}
	}
	for name, m := range refused {
		if err := abortConnection(t.Context(), control, m, agrees); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want that it is refused", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "dir")); err != nil {
		t.Fatalf("the new file system: %v", err)
	}
	if err := abortConnection(t.Context(), control, now, func() error { return ErrRefused }); !errors.Is(err, ErrRefused) {
		t.Errorf("the objection to it is ignored: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "dir")); err != nil {
		t.Fatalf("the new file system: %v", err)
	}
	must(t, abortConnection(t.Context(), control, now, agrees))
	if _, err := os.Stat(dir); !errors.Is(err, sys.ENOTCONN) {
		t.Errorf("after the abort: %v, want ENOTCONN", err)
	}
}

// TestOpenOfWhatIsCovered: the driver has mounted over a directory of the disk that was to be listed.
func TestOpenOfWhatIsCovered(t *testing.T) {
	dir := t.TempDir()
	must(t, sys.NewMount("disk", dir, "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
	disk := mountAtPoint(t, dir)
	fd, err := openRoot(disk)
	must(t, err)
	fd.Close()
	kerneltest.FUSE(t, dir)
	if fd, err := openRoot(disk); !errors.Is(err, ErrRefused) {
		fd.Close()
		t.Errorf("opened what is covered: %v", err)
	}
}

// runtimeByCgroup is a runtime that knows containers by parts of cgroups.
type runtimeByCgroup map[string]cri.Owner

func (b runtimeByCgroup) Owner(_ context.Context, cgroup string) (cri.Owner, error) {
	for part, owner := range b {
		if part != "" && strings.Contains(cgroup, part) {
			return owner, nil
		}
	}
	if owner, ok := b[""]; ok {
		return owner, nil
	}
	return cri.Owner{}, cri.ErrNotFound
}

// TestAProcessOfAnotherContainer has a process of one container enter the mount namespace of another, as debuggers do:
// which of them the namespace is must not be guessed.
func TestAProcessOfAnotherContainer(t *testing.T) {
	name := "kubediag-guest-" + strconv.Itoa(os.Getpid())
	group := kerneltest.ControlGroup(t, name)
	guest := exec.Command("sleep", "1000")
	must(t, guest.Start())
	t.Cleanup(func() {
		_ = guest.Process.Kill()
		_ = guest.Wait()
	})
	kerneltest.JoinControlGroup(t, group, guest.Process.Pid)
	namespace, err := mountns.Of(os.Getpid())
	must(t, err)
	host, visitor := cri.Owner{ContainerID: "h", Container: "host"}, cri.Owner{ContainerID: "v", Container: "visitor"}
	for _, c := range []struct {
		pids []int
		of   runtimeByCgroup
		want string
	}{
		{[]int{guest.Process.Pid, os.Getpid()}, runtimeByCgroup{name: visitor, "": host}, ""},
		{[]int{os.Getpid(), guest.Process.Pid}, runtimeByCgroup{name: visitor, "": host}, ""},
		{[]int{os.Getpid(), guest.Process.Pid}, runtimeByCgroup{name: host, "": host}, "host"},
		{[]int{os.Getpid()}, runtimeByCgroup{name: visitor, "": host}, "host"},
	} {
		n := &namespaces{runtime: c.of, cache: &ownerCache{}}
		o := &otherNamespace{namespace: namespace, pids: c.pids}
		must(t, n.findOwner(t.Context(), o))
		if c.want == "" && (o.owner != nil || !strings.Contains(o.ownerReason, "processes of containers")) {
			t.Errorf("%v: %+v, %q, want that it cannot be told", c.pids, o.owner, o.ownerReason)
		}
		if c.want != "" && (o.owner == nil || o.owner.Container != c.want) {
			t.Errorf("%v: %+v, %q, want %q", c.pids, o.owner, o.ownerReason, c.want)
		}
	}
}

// TestTableOfAContainerWhoseProcessHasEnded: it is read by way of another one, and never that of another namespace.
func TestTableOfAContainerWhoseProcessHasEnded(t *testing.T) {
	point := t.TempDir()
	elsewhere := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-c",
		"mount -t tmpfs none '"+point+"' && echo ready && exec sleep 1000")
	out, err := elsewhere.StdoutPipe()
	must(t, err)
	must(t, elsewhere.Start())
	t.Cleanup(func() {
		_ = elsewhere.Process.Kill()
		_ = elsewhere.Wait()
	})
	_, err = out.Read(make([]byte, 1)) // it has mounted
	must(t, err)
	ended := exec.Command("true")
	must(t, ended.Run())
	namespace, err := mountns.Of(elsewhere.Process.Pid)
	must(t, err)
	namespace.PID = ended.Process.Pid
	namespace.ID = 0 // so that a kernel cannot find it by that
	for _, c := range []struct {
		pids []int
		want bool
	}{
		{[]int{ended.Process.Pid, os.Getpid(), elsewhere.Process.Pid}, true},
		{[]int{os.Getpid()}, false},
		{nil, false},
	} {
		table := (&otherNamespace{namespace: namespace, pids: c.pids}).mountTable()
		if (table != nil) != c.want {
			t.Errorf("by %d: %v, want a table: %v", c.pids, table, c.want)
		}
		if table == nil {
			continue
		}
		if m, ok := table.Top(point); !ok || m.FSType != "tmpfs" {
			t.Errorf("by %d: %+v at %q", c.pids, m, point)
		}
	}
}

// TestNamespaceThatEnds: what was mounted in a namespace that has ended since is no copy; where a descriptor keeps the
// namespace, it is.
func TestNamespaceThatEnds(t *testing.T) {
	for name, kept := range map[string]bool{"with its last process": false, "kept by a descriptor": true} {
		t.Run(name, func(t *testing.T) {
			process := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{}), "daemon")
			ns, err := mountns.Of(process.PID)
			must(t, err)
			if kept {
				f, err := os.Open("/proc/" + strconv.Itoa(process.PID) + "/ns/mnt")
				must(t, err)
				defer f.Close()
			}
			process.Kill()
			self, err := mountns.Self()
			must(t, err)
			n := &namespaces{kubeletNamespace: self, seen: &mountstate.Survey{}}
			must(t, n.findOwners(t.Context(), []mountns.Mount{{Namespace: ns}}))
			if other := n.otherNamespaceOf(ns); other.gone == kept {
				t.Errorf("gone: %v, want %v", other.gone, !kept)
			}
		})
	}
}

// TestNamespaceOfAThread: only a thread is in it, as for the trial of a bind that no other process sees. It is in no container, so
// its mounts are no copies that a container has.
func TestNamespaceOfAThread(t *testing.T) {
	self, err := mountns.Self()
	must(t, err)
	seen, leave, left := make(chan mountns.Namespace, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		left <- sys.OnThread(func() error {
			defer close(seen)
			if err := sys.UnshareMounts(); err != nil {
				return err
			}
			own, err := mountns.Self()
			if err == nil {
				seen <- own
				<-leave
			}
			return err
		})
	}()
	ns := <-seen
	n := &namespaces{kubeletNamespace: self, seen: &mountstate.Survey{}, cache: &ownerCache{}, runtime: runtimeByCgroup{}}
	must(t, n.findOwners(t.Context(), []mountns.Mount{{Namespace: ns}}))
	other := n.otherNamespaceOf(ns)
	if other.gone || !other.outsideContainers || other.mountTable() == nil {
		t.Errorf("%+v, want a namespace outside of containers whose table can be read", other)
	}
	close(leave)
	must(t, <-left)
}

// TestNumberOfANamespaceIsUsedAgain: another program's namespace has ended since its mounts were read, and a new one has its number.
func TestNumberOfANamespaceIsUsedAgain(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceID)
	self, err := mountns.Self()
	must(t, err)
	before := self
	before.ID++
	for name, c := range map[string]struct {
		seen mountns.Namespace
		gone bool
	}{"another with the number": {before, true}, "the same": {self, false}} {
		other := &otherNamespace{namespace: c.seen, gone: true}
		n := namespaces{byKey: map[mountns.Key]*otherNamespace{c.seen.Key(): other}}
		must(t, n.keepLiving())
		if other.gone != c.gone {
			t.Errorf("%s: gone is %t", name, other.gone)
		}
	}
}
