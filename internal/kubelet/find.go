// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Finder finds the kubelet that is ours. Its fields are set before its first use. The zero value serves where one
// kubelet runs on the machine.
type Finder struct {
	// Root is the kubelet's root directory in its mount namespace; it overrules what the kubelet's arguments say.
	Root string
	// PID is the kubelet's process. 0: it is looked for.
	PID int
	// PodUID is the UID of the pod that we run in. Only the kubelet that has its directory, with Hosts in it, is ours. Empty:
	// unknown.
	PodUID string
	// Hosts is what the kubelet has bound into the container that we run in. Empty: /etc/hosts.
	Hosts string
	// Proc is where the process file system is. Empty: /proc.
	Proc string

	mu     sync.Mutex
	found  *Node
	stuck  stuck
	silent []string // processes of the last search that did not answer, in words
}

// ErrNotFound is returned where no kubelet, or more than one, could be ours.
var ErrNotFound = errors.New("kubelet not found")

// Node is our kubelet. What was found is kept as long as that process lives, with its program and its mount namespace.
func (f *Finder) Node(ctx context.Context) (*Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != nil && f.found.process.lives() {
		return f.found, nil
	}
	f.found = nil
	found, err := f.find(ctx)
	if err != nil {
		return nil, err
	}
	f.found = found
	return found, nil
}

func (f *Finder) find(ctx context.Context) (*Node, error) {
	candidates, err := f.candidates(ctx)
	if err != nil {
		return nil, err
	}
	ours := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return !c.ours })
	ours = slices.CompactFunc(ours, candidate.samePlace)
	if len(ours) == 1 {
		return ours[0].node, nil
	}
	return nil, f.explain(candidates, len(ours))
}

// candidates considers each process that may be our kubelet.
func (f *Finder) candidates(ctx context.Context) ([]candidate, error) {
	processes, err := f.processes(ctx)
	if err != nil {
		return nil, err
	}
	var candidates []candidate
	for _, p := range processes {
		c, ok := patiently(&f.stuck, p, func() candidate { return f.consider(p) })
		if !ok {
			c = candidate{node: &Node{Root: p.root(), PID: p.pid, process: p}, why: "has a root directory that does not answer"}
			f.silent = append(f.silent, fmt.Sprintf("the root directory of process %d (%s)", p.pid, p.program))
		}
		candidates = append(candidates, c)
	}
	return candidates, nil
}

// processes lists the kubelets of the machine, or the one that was named, by process number.
func (f *Finder) processes(ctx context.Context) ([]process, error) {
	f.silent = nil
	proc := f.Proc
	if proc == "" {
		if _, err := sys.Procfs(); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		proc = "/proc"
	}
	if f.PID != 0 {
		p := process{pid: f.PID, dir: proc + "/" + strconv.Itoa(f.PID)}
		err := p.identify()
		if err == nil {
			err = p.load()
		}
		if err != nil {
			return nil, fmt.Errorf("read kubelet process (--kubelet-pid=%d): %w", f.PID, err)
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
	// The name first: the arguments of a process that hangs may not be readable.
	if p.loadName() != nil || !mayBeKubelet(p.program) || p.identify() != nil {
		return p, false
	}
	loaded, ok := patiently(&f.stuck, p, func() *process {
		if p := p; p.load() == nil && p.isKubelet() {
			return &p
		}
		return nil
	})
	if !ok {
		f.silent = append(f.silent, fmt.Sprintf("the arguments of process %d (%s)", pid, p.program))
	}
	if !ok || loaded == nil {
		return p, false
	}
	return *loaded, true
}

// candidate is a kubelet and whether it can be ours.
type candidate struct {
	node *Node
	ours bool
	why  string // not, or where it is not known
	// serves is whether the root that is looked for is the one that its arguments name.
	serves bool
}

func (a candidate) samePlace(b candidate) bool {
	return a.node.process.mounts != "" && a.node.process.mounts == b.node.process.mounts && a.node.Root == b.node.Root
}

// consider looks at one kubelet through its own root directory.
func (f *Finder) consider(p process) candidate {
	c := candidate{node: &Node{Root: p.root(), PID: p.pid, process: p}}
	if f.Root != "" {
		c.node.Root = f.Root
	}
	if chroot, err := os.Readlink(p.prefix()); err == nil && chroot != "/" {
		c.why = fmt.Sprintf("runs in a changed root directory %q", chroot)
		return c
	}
	if err := c.node.settle(p.prefix()); err != nil {
		c.why = err.Error()
		return c
	}
	own, err := resolveIn(p.prefix(), p.root())
	c.serves = err == nil && own == c.node.Root
	if f.PodUID != "" {
		c.why = f.stranger(c.node)
	}
	c.ours = c.why == ""
	return c
}

// stranger says why a kubelet is not the one that runs our pod; empty: it is. Anybody can make a directory of the pod in
// a container. But the one file etc-hosts in there the kubelet has bound into our container, too.
func (f *Finder) stranger(n *Node) string {
	const file = "etc-hosts"
	found, err := sys.OpenIn(n.process.prefix(), n.PodDir(f.PodUID)+"/"+file)
	if err != nil {
		return fmt.Sprintf("has no %s of our pod: %v", file, err)
	}
	defer found.Close()
	theirs, err := found.Stat(sys.StatIno)
	if err != nil {
		return fmt.Sprintf("does not tell which %s of our pod it has: %v", file, err)
	}
	hosts := cmp.Or(f.Hosts, "/etc/hosts")
	own, err := sys.StatPath(hosts, sys.StatIno)
	switch {
	case err != nil:
		return fmt.Sprintf("cannot be told from another: look at our own %q: %v", hosts, err)
	case own.Ino != theirs.Ino || own.Major != theirs.Major || own.Minor != theirs.Minor:
		return fmt.Sprintf("has not bound its %s of our pod at our %q", file, hosts)
	}
	return ""
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
	all, advice := strings.Join(seen, ", "), "set --kubelet-root or --kubelet-pid"
	if f.Root != "" {
		advice = fmt.Sprintf("--kubelet-root=%q alone does not tell: set --kubelet-pid", f.Root)
	}
	if f.Proc == "" && !sys.SeesEverything() {
		advice = "run it as root in the host's PID namespace, or " + advice
	}
	switch {
	case f.PID != 0:
		return fmt.Errorf("%w: --kubelet-pid=%d is no kubelet that can be used: %s", ErrNotFound, f.PID, all)
	case len(seen) == 0:
		return fmt.Errorf("%w: %s: %s", ErrNotFound, f.none(), advice)
	case ours > 0:
		return fmt.Errorf("%w: it may be any of these: %s: %s", ErrNotFound, all, advice)
	case f.PodUID == "":
		return fmt.Errorf("%w: none of these can be used: %s: %s", ErrNotFound, all, advice)
	}
	return fmt.Errorf("%w: pod %q belongs to none of these: %s: %s", ErrNotFound, f.PodUID, all, advice)
}

// none says that no kubelet was seen, among which processes.
func (f *Finder) none() string {
	text := "no process is a kubelet"
	if f.Proc == "" {
		switch sight, err := sys.ProcSight(); {
		case err != nil || sight == sys.SeesOwn:
			text = "no process that /proc shows is a kubelet, and it does not show the processes of others"
		case sight == sys.SeesNamespace:
			text = "no process that /proc shows is a kubelet, and it shows none outside of this PID namespace"
		}
	}
	if len(f.silent) > 0 {
		text += fmt.Sprintf("; for %s was waited in vain (%s each)", strings.Join(f.silent, ", "), Patience)
	}
	return text
}
