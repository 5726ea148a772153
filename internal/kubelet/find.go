// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Finder finds the kubelet that is ours. Its fields are set before its first use. The zero value serves where one
// kubelet runs on the machine.
type Finder struct {
	// Root is the kubelet's root directory in its mount namespace; it overrules what the kubelet's arguments say.
	Root string
	// PID is the kubelet's process. 0: it is looked for.
	PID int
	// PodUID is the UID of the pod that we run in. Only the kubelet that has its directory is ours. Empty: unknown.
	PodUID string
	// Proc is where the process file system is. Empty: /proc.
	Proc string

	mu    sync.Mutex
	found *Node
	stuck stuck
}

// ErrNotFound is returned where no kubelet, or more than one, could be ours.
var ErrNotFound = errors.New("kubelet not found")

// Node is our kubelet. What was found is kept as long as that process lives.
func (f *Finder) Node(ctx context.Context) (*Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil {
		if started, err := startTime(f.found.process.dir); err == nil && started == f.found.process.started {
			return f.found, nil
		}
	}
	found, err := f.find(ctx)
	if err != nil {
		return nil, err
	}
	f.found = found
	return found, nil
}

func (f *Finder) find(ctx context.Context) (*Node, error) {
	processes, err := f.processes(ctx)
	if err != nil {
		return nil, err
	}
	var candidates []candidate
	for _, p := range processes {
		c, ok := patiently(&f.stuck, p, func() candidate { return f.consider(p) })
		if !ok {
			c = candidate{node: &Node{Root: p.root(), PID: p.pid}, why: "has a root directory that does not answer"}
		}
		candidates = append(candidates, c)
	}
	ours := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return !c.ours })
	ours = slices.CompactFunc(ours, candidate.samePlace)
	if len(ours) == 1 {
		return ours[0].node, nil
	}
	return nil, f.explain(candidates, len(ours))
}

// processes lists the kubelets of the machine, or the one that was named, by process number.
func (f *Finder) processes(ctx context.Context) ([]process, error) {
	proc := f.Proc
	if proc == "" {
		proc = "/proc"
	}
	if f.PID != 0 {
		p := process{pid: f.PID, dir: proc + "/" + strconv.Itoa(f.PID)}
		if err := errors.Join(p.loadName(), p.load()); err != nil {
			return nil, fmt.Errorf("read kubelet process %d (--kubelet-pid): %w", f.PID, err)
		}
		return []process{p}, nil
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p, ok := f.open(proc, pid); ok {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found, nil
}

// open reads a process. ok is false where it is no kubelet, or keeps us waiting.
func (f *Finder) open(proc string, pid int) (process, bool) {
	p := process{pid: pid, dir: filepath.Join(proc, strconv.Itoa(pid))}
	// The name first: it takes no lock, while the arguments of a process that hangs may not be readable.
	if p.loadName() != nil || !mayBeKubelet(p.program) {
		return p, false
	}
	loaded, ok := patiently(&f.stuck, p, func() *process {
		if p := p; p.load() == nil && p.isKubelet() {
			return &p
		}
		return nil
	})
	if !ok || loaded == nil {
		return p, false
	}
	return *loaded, true
}

// candidate is a kubelet and whether it can be ours.
type candidate struct {
	node      *Node
	namespace string
	ours      bool
	why       string // not, or where it is not known
}

func (a candidate) samePlace(b candidate) bool {
	return a.namespace != "" && a.namespace == b.namespace && a.node.Root == b.node.Root
}

// consider looks at one kubelet through its own root directory.
func (f *Finder) consider(p process) candidate {
	c := candidate{node: &Node{Root: p.root(), PID: p.pid, process: p}}
	if f.Root != "" {
		c.node.Root = f.Root
	}
	c.namespace, _ = os.Readlink(p.dir + "/ns/mnt") // empty: nothing is the same place
	if chroot, err := os.Readlink(p.prefix()); err == nil && chroot != "/" {
		c.why = fmt.Sprintf("runs in a changed root directory %q", chroot)
		return c
	}
	if err := c.node.settle(p.prefix()); err != nil {
		c.why = err.Error()
		return c
	}
	if f.PodUID == "" {
		c.ours = true
		return c
	}
	if _, err := os.Lstat(p.prefix() + c.node.PodDir(f.PodUID)); err != nil {
		c.why = "has no directory of our pod"
		return c
	}
	c.ours = true
	return c
}

// explain says what was found instead of one kubelet.
func (f *Finder) explain(candidates []candidate, ours int) error {
	var seen []string
	for _, c := range candidates {
		s := fmt.Sprintf("process %d (root %q)", c.node.PID, c.node.Root)
		if c.why != "" {
			s += " " + c.why
		}
		seen = append(seen, s)
	}
	const advice = "set --kubelet-root or --kubelet-pid"
	switch {
	case len(seen) == 0:
		return fmt.Errorf("%w: no process is a kubelet: %s", ErrNotFound, advice)
	case ours == 0:
		return fmt.Errorf("%w: pod %q belongs to none of these: %s: %s", ErrNotFound, f.PodUID, strings.Join(seen, ", "), advice)
	}
	return fmt.Errorf("%w: it may be any of these: %s: %s", ErrNotFound, strings.Join(seen, ", "), advice)
}
