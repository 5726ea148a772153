// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"io/fs"
	"testing"
)

func TestNodeOrOwn(t *testing.T) {
	t.Parallel()
	here := t.TempDir()
	for name, c := range map[string]struct {
		root  string
		named int // --kubelet-pid
		setup func(m machine)
		pid   int
		err   error
	}{
		"no kubelet":            {root: here},
		"no kubelet, no root":   {err: ErrNotFound},
		"no kubelet, no place":  {root: here + "/gone", err: fs.ErrNotExist},
		"a kubelet elsewhere":   {root: here, setup: func(m machine) { m.run(7, "kubelet", []string{"kubelet"}, DefaultRoot) }},
		"a kubelet has it":      {root: here, setup: func(m machine) { m.run(7, "kubelet", []string{"kubelet"}, here) }, pid: 7},
		"the named one has not": {root: here, named: 7, setup: func(m machine) { m.run(7, "kubelet", []string{"kubelet"}) }, err: ErrNotFound},
		"two have it": {root: here, setup: func(m machine) {
			m.run(7, "kubelet", []string{"kubelet"}, here)
			m.run(8, "kubelet", []string{"kubelet"}, here)
		}, err: ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if c.setup != nil {
				c.setup(m)
			}
			f := &Finder{Root: c.root, PID: c.named, Proc: m.proc}
			n, err := f.NodeOrOwn(t.Context())
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err == nil && (n.PID != c.pid || n.Root != here) {
				t.Errorf("node %v, want process %d, root %q", n, c.pid, here)
			}
		})
	}
}
