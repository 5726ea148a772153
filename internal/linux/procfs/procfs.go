// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads facts about other processes in /proc, and gives up on a process that keeps it waiting.
//
// A process that becomes another program is locked meanwhile, and it closes files then: if the file system of a file
// does not answer, the process stays locked. Most of its files in /proc wait for that lock: maps and environ always,
// and on newer kernels the links to its namespaces, descriptors and directories, and its stat. Any user can make such a
// process. The thread that waits for it ends when the process goes on or ends, or by SIGKILL.
//
// Its callers choose the files to read. It rests on proc(5) and execve(2).
package procfs

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrSilent is returned for a process that does not answer. It is also returned for a process that is left out, as it
// did not answer before, or others of its control group did not.
var ErrSilent = errors.New("process does not answer")

const (
	// pollInterval is the time between two checks of the progress. A process is given up when there was none between
	// two checks.
	pollInterval = 500 * time.Millisecond
	// maxRunnableChecks is for how many more checks, in all, one look over the processes waits for those that can run and get no
	// processor: such a one does not hang, and the node is busy.
	maxRunnableChecks = 4
	// maxSilentProcesses is for how many processes a thread waits at most, and maxSilentPerGroup
	// for how many of one control group. A user who makes such processes prevents
	// no look at those of others.
	maxSilentProcesses = 64
	maxSilentPerGroup  = 2
	// A process takes some microseconds. With more threads there would be nothing left for others.
	pidsPerThread = 256
	maxThreads    = 4
)

// Each calls look with every process in turn, and take with its results, or with ErrSilent. A look that takes long
// calls step to report progress. look only reads, as it may be left behind; take is never called after Each has
// returned, nor twice at a time.
func Each[T any](pids []int, look func(pid int, step func()) (T, error), take func(pid int, value T, err error)) {
	askEach(&otherProcesses, pids, look, take)
}

// EachApart is Each for a process that can be lost, and bounds by itself for how many processes it waits: none is left out
// for others of its control group.
func EachApart[T any](pids []int, look func(pid int, step func()) (T, error), take func(pid int, value T, err error)) {
	askEach(&processesApart, pids, look, take)
}

// EachParallel is Each by several threads, for a look that they may take at the same time. It calls take in the order
// of pids, once all answers are in.
func EachParallel[T any](pids []int, look func(pid int, step func()) (T, error), take func(pid int, value T, err error)) {
	type answer struct {
		pid   int
		value T
		err   error
	}
	parts := Parts(pids)
	answers := make([][]answer, len(parts))
	var done sync.WaitGroup
	for i, part := range parts {
		done.Go(func() {
			Each(part, look, func(pid int, value T, err error) { answers[i] = append(answers[i], answer{pid, value, err}) })
		})
	}
	done.Wait()
	for _, a := range slices.Concat(answers...) {
		take(a.pid, a.value, a.err)
	}
}

// Parts splits processes into as many parts as are worth a thread each.
func Parts(pids []int) [][]int {
	n := min(1+len(pids)/pidsPerThread, runtime.GOMAXPROCS(0), maxThreads)
	parts := make([][]int, n)
	for i := range parts {
		parts[i] = pids[len(pids)*i/n : len(pids)*(i+1)/n]
	}
	return parts
}

// Ask is Each of one process.
func Ask[T any](pid int, look func() (T, error)) (value T, err error) {
	Each([]int{pid}, func(int, func()) (T, error) { return look() }, func(_ int, v T, e error) { value, err = v, e })
	return value, err
}

// Open is Ask for a descriptor. A descriptor that is opened too late is closed.
func Open(pid int, open func() (*sys.FD, error)) (*sys.FD, error) {
	var (
		mu    sync.Mutex
		fd    *sys.FD
		ended bool
	)
	_, err := Ask(pid, func() (none struct{}, err error) {
		opened, err := open()
		mu.Lock()
		defer mu.Unlock()
		if fd = opened; ended {
			fd.Close()
		}
		return none, err
	})
	mu.Lock()
	defer mu.Unlock()
	ended = true
	if err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

func askEach[T any](s *silentProcesses, pids []int, look func(int, func()) (T, error), take func(int, T, error)) {
	var spared atomic.Int64
	for len(pids) > 0 {
		r := askRound[T]{silentProcesses: s, pids: pids, readProcess: look, handleResult: take, sparedChecks: &spared}
		pids = pids[r.runUntilStuck():]
	}
}

// askRound calls look with processes, until one is given up.
type askRound[T any] struct {
	*silentProcesses
	pids         []int
	readProcess  func(int, func()) (T, error)
	handleResult func(int, T, error)
	sparedChecks *atomic.Int64 // those that did not count, of all rounds

	progress   atomic.Int64
	mu         sync.Mutex
	takenCount int  // how many processes are done, or left out
	abandoned  bool // no caller waits for the rest
}

// runUntilStuck returns how many processes are done.
func (r *askRound[T]) runUntilStuck() int {
	ctx, stop := r.watchProgress()
	defer stop()
	_, err := bounded.Do(ctx, &r.calls, bounded.Call{}, func() (none struct{}, err error) {
		for _, pid := range r.pids {
			var value T
			err := ErrSilent
			if r.mayAsk(pid) {
				value, err = r.readProcess(pid, func() { r.progress.Add(1) })
			}
			r.progress.Add(1)
			if !r.handOver(pid, value, err) {
				break
			}
		}
		return none, nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	var none T
	switch {
	case errors.Is(err, bounded.ErrTooMany):
		for _, pid := range r.pids {
			r.handleResult(pid, none, ErrSilent)
		}
		return len(r.pids)
	case err == nil || r.takenCount == len(r.pids):
		return len(r.pids)
	}
	r.abandoned = true
	pid := r.pids[r.takenCount]
	r.setSilent(pid, true)
	r.handleResult(pid, none, ErrSilent)
	return r.takenCount + 1
}

// watchProgress returns a context that ends when nothing has moved on between two ticks.
func (r *askRound[T]) watchProgress() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ticks := time.NewTicker(pollInterval)
		defer ticks.Stop()
		for before, still := int64(0), 0; still < 2; {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			r.mu.Lock()
			at := r.takenCount
			r.mu.Unlock()
			switch now := r.progress.Load(); {
			case now != before:
				before, still = now, 0
			case still == 0 || at == len(r.pids) || !r.runnable(r.pids[at]) || r.sparedChecks.Add(1) > maxRunnableChecks:
				still++ // it does not wait for a processor, or may be waited for no more
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// handOver hands on the value that was read of a process, unless no caller waits for it any more.
func (r *askRound[T]) handOver(pid int, value T, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		r.setSilent(pid, false)
		return false
	}
	r.handleResult(pid, value, err)
	r.takenCount++
	return true
}

// silentProcesses are the processes that do not answer.
type silentProcesses struct {
	calls    bounded.Calls
	groupOf  func(pid int) string
	runnable func(pid int) bool

	mu         sync.Mutex
	groupByPID map[int]string // the control groups of processes for which a thread waits
}

var otherProcesses = silentProcesses{calls: bounded.Calls{Total: maxSilentProcesses}, groupOf: controlGroup, runnable: isRunnable}

// processesApart has a group for each process.
var processesApart = silentProcesses{calls: bounded.Calls{Total: maxSilentProcesses}, groupOf: strconv.Itoa, runnable: isRunnable}

// mayAsk reports whether look may be called with a process.
func (p *silentProcesses) mayAsk(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.groupByPID) == 0 {
		return true
	}
	if _, waits := p.groupByPID[pid]; waits {
		return false
	}
	alike, group := 0, p.groupOf(pid)
	for _, other := range p.groupByPID {
		if other == group {
			alike++
		}
	}
	return alike < maxSilentPerGroup
}

// setSilent notes whether a thread waits for a process.
func (p *silentProcesses) setSilent(pid int, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !silent {
		delete(p.groupByPID, pid)
		return
	}
	if p.groupByPID == nil {
		p.groupByPID = map[int]string{}
	}
	p.groupByPID[pid] = p.groupOf(pid)
}

// controlGroup is the text of a file that the kernel shows of any process.
func controlGroup(pid int) string {
	text, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
	if err != nil {
		return strconv.Itoa(pid) // it has ended
	}
	return string(text)
}

// isRunnable reports whether a process has all that it needs but a processor.
func isRunnable(pid int) bool {
	state, err := sys.ReadProcStatus(strconv.Itoa(pid), "State")
	return err == nil && strings.HasPrefix(state, "R")
}

// Ended reports whether err only means that the process, or its file, no longer exists.
func Ended(err error) bool { return errors.Is(err, sys.ENOENT) || errors.Is(err, sys.ESRCH) }
