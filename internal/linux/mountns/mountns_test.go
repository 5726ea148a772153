// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

func TestSelfIsTheProcessOwn(t *testing.T) {
	t.Parallel()
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	of, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	link, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if !self.Same(of) || self.String() != link || of.PID != os.Getpid() {
		t.Errorf("self %v, of %v, link %s", self, of, link)
	}
}

// TestOpenTouchesNothingElse: a link that led to a namespace may lead to
// anything by the time it is opened.
func TestOpenTouchesNothingElse(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, link := range []string{"self/fd/" + strconv.Itoa(int(r.Fd())), "self/root", "self/ns/uts"} {
		fd, _, err := openLink(link)
		fd.Close()
		if !errors.Is(err, sys.EINVAL) && !errors.Is(err, sys.ENOTTY) {
			t.Errorf("%s: %v, want EINVAL", link, err)
		}
	}
	fd, _, err := openNamed(os.Getpid(), "/dev/null")
	fd.Close()
	if !errors.Is(err, sys.EINVAL) {
		t.Errorf("a device: %v, want EINVAL", err)
	}
}

// TestDoInOwnNamespaceNeedsNothing: no thread, no privilege.
func TestDoInOwnNamespaceNeedsNothing(t *testing.T) {
	t.Parallel()
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("failure")
	err = self.Do(func() error {
		if sys.InPrivateThread() {
			t.Error("went to another thread")
		}
		return failure
	})
	if err != failure { //nolint:errorlint // it must come back bare
		t.Errorf("error %v, want the function's own", err)
	}
}

func TestDoRefusesWhatChanged(t *testing.T) {
	t.Parallel()
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	other := self
	other.Inode++
	never := func() error { t.Error("called"); return nil }
	if err := other.Do(never); !errors.Is(err, ErrChanged) {
		t.Errorf("another inode: %v, want ErrChanged", err)
	}
	if self.ID != 0 { // the kernel numbers namespaces (6.12)
		other = self
		other.ID++
		if err := other.Do(never); !errors.Is(err, ErrChanged) {
			t.Errorf("another number: %v, want ErrChanged", err)
		}
	}
	other.PID = 1 << 30
	if err := other.Do(never); !errors.Is(err, sys.ENOENT) {
		t.Errorf("no such process: %v, want ENOENT", err)
	}
}

func TestReadWithoutProcess(t *testing.T) {
	t.Parallel()
	if _, err := Of(1 << 30); !errors.Is(err, sys.ENOENT) {
		t.Errorf("namespace: %v, want ENOENT", err)
	}
	if _, err := Read(1<<30, nil); !errors.Is(err, sys.ENOENT) {
		t.Errorf("mountinfo: %v, want ENOENT", err)
	}
	if _, err := Table(1 << 30); !errors.Is(err, sys.ENOENT) {
		t.Errorf("table: %v, want ENOENT", err)
	}
}

func TestTableHasTheRoot(t *testing.T) {
	t.Parallel()
	table, err := Table(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := table.Top("/"); !ok {
		t.Error("no mount at /")
	}
}

func TestMayHang(t *testing.T) {
	t.Parallel()
	for fsType, want := range map[string]bool{
		"fuse": true, "fuse.sshfs": true, "nfs4": true, "ceph": true, "9p": true,
		"ext4": false, "tmpfs": false, "overlay": false, "fusectl": false, "nfsd": false, "": false,
	} {
		if got := MayHang(fsType); got != want {
			t.Errorf("MayHang(%q) = %v, want %v", fsType, got, want)
		}
	}
}

// TestThrough: a namespace is opened by the process or the descriptor that leads to it, and keeps the process that it has.
func TestThrough(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		namespace Namespace
		holder    Holder
		want      Namespace
	}{
		"a process":          {Namespace{Inode: 7}, Holder{Kind: Process, PID: 5}, Namespace{Inode: 7, PID: 5}},
		"a thread":           {Namespace{Inode: 7}, Holder{Kind: Thread, PID: 5, Number: 6}, Namespace{Inode: 7, PID: 6}},
		"a descriptor":       {Namespace{Inode: 7}, Holder{Kind: Descriptor, PID: 5, Number: 3}, Namespace{Inode: 7, Link: "5/fd/3"}},
		"a link is known":    {Namespace{Link: "8/fd/9"}, Holder{Kind: Descriptor, PID: 5, Number: 3}, Namespace{Link: "8/fd/9"}},
		"a process is known": {Namespace{PID: 8}, Holder{Kind: Process, PID: 5}, Namespace{PID: 8}},
		"a file":             {Namespace{Inode: 7}, Holder{Kind: NamedMount}, Namespace{Inode: 7}},
	} {
		if got := tc.namespace.Through(tc.holder); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
