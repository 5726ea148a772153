// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestNodeOrOwn(t *testing.T) {
	t.Parallel()
	here := t.TempDir()
	for name, c := range map[string]struct {
		root   string
		named  int // --kubelet-pid
		setup  func(m fakeProc)
		pid    int
		passed int
		err    error
	}{
		"no kubelet":           {root: here},
		"no kubelet, no root":  {err: ErrNotFound},
		"no kubelet, no place": {root: here + "/gone", err: fs.ErrNotExist},
		"a kubelet elsewhere":  {root: here, setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot) }, passed: 1},
		"a kubelet serves it":  {root: here, setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=" + here}, here) }, pid: 7},
		"by way of a link": {root: here, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=/link"}, here)
			m.must(os.Symlink(here, m.procPath(7, "root/link")))
		}, pid: 7},
		"a kubelet has it and serves another": {root: here, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet"}, here, DefaultRoot)
		}, passed: 1},
		"one of two serves it": {root: here, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet"}, here, DefaultRoot)
			m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir", here}, here)
		}, pid: 8},
		"the named one has not": {root: here, named: 7, setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet"}) }, err: ErrNotFound},
		"two serve it": {root: here, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=" + here}, here)
			m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=" + here}, here)
		}, err: ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if c.setup != nil {
				c.setup(m)
			}
			f := &Finder{Root: c.root, PID: c.named, Proc: m.proc}
			n, err := f.NodeOrLocal(t.Context())
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err == nil && (n.Node.PID != c.pid || n.Node.Root != here || len(n.Skipped) != c.passed) {
				t.Errorf("node %v, passed %q, want process %d, root %q, %d passed", n.Node, n.Skipped, c.pid, here, c.passed)
			}
		})
	}
}

func TestDefaultRootOfAKubeletThatIsDown(t *testing.T) {
	t.Parallel()
	left, empty := t.TempDir(), t.TempDir()
	if err := os.Mkdir(left+"/pods", 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root  string
		setup func(m fakeProc)
		pid   int
		down  bool
		err   error
	}{
		"down":             {root: left, down: true},
		"down, and no pod": {root: empty, err: ErrNotFound},
		"down, and gone":   {root: empty + "/gone", err: ErrNotFound},
		"up": {root: left, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=" + left}, left)
		}, pid: 7},
		"two are up": {root: left, setup: func(m fakeProc) {
			m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=" + left}, left)
			m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=" + empty}, empty)
		}, err: ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if c.setup != nil {
				c.setup(m)
			}
			n, err := (&Finder{Default: c.root, Proc: m.proc}).NodeOrLocal(t.Context())
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err == nil && (n.Node.PID != c.pid || n.Down != c.down || n.Node.Root != left) {
				t.Errorf("node %+v, want process %d, down %t", n, c.pid, c.down)
			}
		})
	}
}
