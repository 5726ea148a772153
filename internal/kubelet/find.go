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

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Finder finds our kubelet. Its fields are set before its first use. The zero value is enough if one kubelet runs on
// the machine.
type Finder struct {
	// Root is the kubelet's root directory in its mount namespace; it overrules the kubelet's arguments.
	Root string
	// Default is the root that NodeOrLocal takes if no process is a kubelet. Empty: no root.
	Default string
	// PID is the kubelet's process. 0: the Finder searches for it.
	PID int
	// PodUID is the UID of the pod in which we run. Only the kubelet that has its directory, with Hosts in it, is ours.
	// Empty: unknown.
	PodUID string
	// Hosts is the file that the kubelet has bound into the container in which we run. Empty: /etc/hosts.
	Hosts string
	// Proc is the directory of the process file system. Empty: /proc.
	Proc string

	mu     sync.Mutex
	found  *Node
	search *kubeletSearch // the last one, or the one under way
	calls  processCalls
}

// kubeletSearch is one search through the processes of the machine. All callers at that time wait for it.
type kubeletSearch struct {
	done       chan struct{}
	node       *Node
	err        error
	candidates []candidate
	silent     []string // processes that did not answer, in words
	skipped    []string // processes that cannot be the kubelet of the host, in words
}

// ErrNotFound is returned if no kubelet, or more than one, could be ours.
var ErrNotFound = errors.New("kubelet not found")

// Node returns our kubelet. It keeps the result as long as that process lives, with its program and its mount namespace.
func (f *Finder) Node(ctx context.Context) (*Node, error) {
	s, err := f.currentSearch(ctx)
	if err != nil {
		return nil, err
	}
	return s.node.inPass(ctx), s.err
}

// currentSearch returns the search whose result still holds, or a new one. It holds no lock while it waits.
func (f *Finder) currentSearch(ctx context.Context) (*kubeletSearch, error) {
	for {
		f.mu.Lock()
		search := f.search
		if search != nil && f.found != nil && f.found.process.isAlive() {
			f.mu.Unlock()
			return search, nil
		}
		waits := search != nil
		if waits {
			select {
			case <-search.done:
				waits = false
			default:
			}
		}
		if !waits {
			search = &kubeletSearch{done: make(chan struct{})}
			f.search, f.found = search, nil
		}
		f.mu.Unlock()
		if !waits {
			f.runSearch(ctx, search)
			return search, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-search.done:
		}
		if !errors.Is(search.err, context.Canceled) && !errors.Is(search.err, context.DeadlineExceeded) { // of the caller that began it
			return search, nil
		}
	}
}

func (f *Finder) runSearch(ctx context.Context, search *kubeletSearch) {
	defer close(search.done)
	if search.err = f.findCandidates(ctx, search); search.err != nil {
		return
	}
	ours := slices.DeleteFunc(slices.Clone(search.candidates), func(c candidate) bool { return !c.isOurs })
	if ours = f.chooseCandidates(ours); len(ours) != 1 {
		search.err = f.notFoundError(search, search.candidates, len(ours))
		return
	}
	search.node = ours[0].node
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = search.node
}

// chooseCandidates leaves one of the candidates for the same place, and of several those in the mount namespace of process
// 1.
func (f *Finder) chooseCandidates(all []candidate) []candidate {
	all = slices.CompactFunc(all, func(a, b candidate) bool {
		return a.node.process.mounts != "" && a.node.process.mounts == b.node.process.mounts && a.node.Root == b.node.Root
	})
	host, err := os.Readlink(cmp.Or(f.Proc, "/proc") + "/1/ns/mnt")
	if of := func(c candidate) bool { return c.node.process.mounts == host }; err == nil && slices.ContainsFunc(all, of) {
		all = slices.DeleteFunc(all, func(c candidate) bool { return !of(c) })
	}
	return all
}

// findCandidates considers each process that may be our kubelet.
func (f *Finder) findCandidates(ctx context.Context, search *kubeletSearch) error {
	processes, err := f.listProcesses(ctx, search)
	if err != nil {
		return err
	}
	found, silent, err := askEach(ctx, &f.calls, processes, f.evaluate)
	if err != nil {
		return err
	}
	for _, p := range silent {
		search.silent = append(search.silent, p.String())
	}
	search.candidates = slices.DeleteFunc(found, func(c candidate) bool { return c.node == nil })
	return nil
}

// listProcesses lists the processes of the machine that have a kubelet's name, or the process of f.PID, by process number.
func (f *Finder) listProcesses(ctx context.Context, search *kubeletSearch) ([]candidateProcess, error) {
	proc := f.Proc
	if proc == "" {
		if _, err := sys.Procfs(); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		proc = "/proc"
	}
	if f.PID != 0 {
		p, err := candidateProcess{pid: f.PID, dir: proc + "/" + strconv.Itoa(f.PID)}.identify()
		if err != nil {
			return nil, fmt.Errorf("read kubelet process (--kubelet-pid=%d): %w", f.PID, err)
		}
		return []candidateProcess{p}, nil
	}
	named, err := listNamed(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []candidateProcess
	for _, p := range named {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		process, err := p.identify()
		why := "" // it is not our kubelet
		if err == nil {
			why, err = procfs.Ask(p.pid, func() (string, error) { return process.foreignReason(proc + "/self"), nil })
		}
		switch {
		case errors.Is(err, procfs.ErrSilent):
			search.silent = append(search.silent, p.String())
		case err != nil: // it has ended
		case why != "":
			search.skipped = append(search.skipped, fmt.Sprintf("%s, which %s", process, why))
		default:
			found = append(found, process)
		}
	}
	return found, nil
}

// listNamed lists the processes that have a kubelet's name, by process number. The name of any process can be read.
func listNamed(proc string) ([]candidateProcess, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	parts := procfs.Parts(pids)
	named := make([][]candidateProcess, len(parts))
	var done sync.WaitGroup
	for i, part := range parts {
		done.Go(func() {
			for _, pid := range part {
				p := candidateProcess{pid: pid, dir: filepath.Join(proc, strconv.Itoa(pid))}
				if p.loadName() == nil && (kubeletName.MatchString(p.program) || slices.Contains(kubeletPrograms, p.program)) {
					named[i] = append(named[i], p)
				}
			}
		})
	}
	done.Wait()
	return slices.Concat(named...), nil
}

// candidate is a kubelet and whether it can be ours.
type candidate struct {
	node     *Node
	isOurs   bool
	mismatch string // why it is not, or why that is not known
	// servesRoot is whether its arguments name the root of the search.
	servesRoot bool
}

// evaluate judges one process through its own root directory. The zero value: it is no kubelet.
func (f *Finder) evaluate(process candidateProcess) candidate {
	if err := process.loadArguments(); f.PID == 0 && (err != nil && !errors.Is(err, errNoArguments) || err == nil && !process.isKubelet()) {
		return candidate{}
	} else if err != nil {
		return candidate{node: &Node{Layout: Layout{Root: DefaultRoot}, PID: process.pid, process: process}, mismatch: err.Error()}
	}
	c := candidate{node: &Node{Layout: Layout{Root: process.rootArgument()}, PID: process.pid, process: process}}
	if f.Root != "" {
		c.node.Root = f.Root
	}
	if chroot, err := os.Readlink(process.rootPrefix()); err == nil && chroot != "/" {
		c.mismatch = fmt.Sprintf("runs in a changed root directory %q", chroot)
		return c
	}
	if err := c.node.resolve(process.rootPrefix()); err != nil {
		c.mismatch = err.Error()
		return c
	}
	own, err := resolveIn(process.rootPrefix(), process.rootArgument(), nil)
	c.servesRoot = err == nil && own == c.node.Root
	if f.PodUID != "" {
		c.mismatch = f.podMismatch(c.node)
	}
	c.isOurs = c.mismatch == ""
	return c
}

// podMismatch says why a kubelet does not run our pod; empty: it does. Any user can make a directory of the
// pod in a container. But the kubelet has bound the file etc-hosts of that directory into our container, too.
func (f *Finder) podMismatch(n *Node) string {
	const file = "etc-hosts"
	found, err := sys.OpenIn(n.process.rootPrefix(), n.PodDir(f.PodUID)+"/"+file)
	if err != nil {
		return fmt.Sprintf("has no %s of our pod: %v", file, err)
	}
	defer found.Close()
	theirs, err := found.Stat(sys.StatIno)
	if err != nil {
		return fmt.Sprintf("does not show which %s of our pod it has: %v", file, err)
	}
	hosts := cmp.Or(f.Hosts, "/etc/hosts")
	own, err := sys.StatPath(hosts, sys.StatIno)
	switch {
	case err != nil:
		return fmt.Sprintf("cannot be distinguished from another: look at our own %q: %v", hosts, err)
	case own.Ino != theirs.Ino || own.Major != theirs.Major || own.Minor != theirs.Minor:
		return fmt.Sprintf("has not bound its %s of our pod at our %q", file, hosts)
	}
	return ""
}

// notFoundError names the processes that were found instead of one kubelet.
func (f *Finder) notFoundError(search *kubeletSearch, candidates []candidate, ours int) error {
	var seen []string
	for _, c := range candidates {
		text := fmt.Sprintf("process %d (root %q)", c.node.PID, c.node.Root)
		if c.mismatch != "" {
			text += " " + c.mismatch
		}
		seen = append(seen, text)
	}
	if len(seen) > 0 && len(search.silent) > 0 {
		seen = append(seen, strings.Join(search.silent, ", ")+fmt.Sprintf(", which did not answer within %s", SearchTimeout))
	}
	all, advice := strings.Join(seen, ", "), "set --kubelet-root or --kubelet-pid"
	if f.Root != "" {
		advice = fmt.Sprintf("--kubelet-root=%q alone is ambiguous: set --kubelet-pid", f.Root)
	}
	if f.Proc == "" && !sys.SeesEverything() {
		advice = "run it as root in the host's PID namespace, or " + advice
	}
	switch {
	case f.PID != 0:
		return fmt.Errorf("%w: --kubelet-pid=%d is no kubelet that can be used: %s", ErrNotFound, f.PID, all)
	case len(seen) == 0:
		text := "no process is a kubelet"
		if f.Proc == "" {
			switch visible, err := sys.ProcVisibility(); {
			case err != nil || visible == sys.SeesOwn:
				text = "no process that /proc shows is a kubelet, and it does not show the processes of others"
			case visible == sys.SeesNamespace:
				text = "no process that /proc shows is a kubelet, and it shows none outside of this PID namespace"
			}
		}
		if len(search.silent) > 0 {
			text += fmt.Sprintf("; for %s was waited in vain (%s)", strings.Join(search.silent, ", "), SearchTimeout)
		}
		if len(search.skipped) > 0 {
			text += "; passed over: " + strings.Join(search.skipped[:min(len(search.skipped), maxSkipped)], ", ")
		}
		return fmt.Errorf("%w: %s: %s", ErrNotFound, text, advice)
	case ours > 0:
		return fmt.Errorf("%w: found several candidates: %s: %s", ErrNotFound, all, advice)
	case f.PodUID == "":
		return fmt.Errorf("%w: none of these can be used: %s: %s", ErrNotFound, all, advice)
	}
	return fmt.Errorf("%w: pod %q belongs to none of these: %s: %s", ErrNotFound, f.PodUID, all, advice)
}

// maxSkipped bounds the processes that cannot be the kubelet and are named.
const maxSkipped = 4
