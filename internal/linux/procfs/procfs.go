// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs asks about other processes by way of /proc, and gives up on one that
// keeps it waiting.
//
// A process that becomes another program is locked meanwhile, and it closes files then:
// if the file system of one does not answer, it stays locked. Most of what /proc shows
// of it waits for that lock: maps and environ always, and on newer kernels the links to
// its namespaces, descriptors and directories, and its stat. Any user can make such
// a process. The thread that waits for it ends when the process goes on or ends, or
// by SIGKILL.
//
// It knows nothing of what is asked, and rests on proc(5) and execve(2).
package procfs

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrSilent is returned for a process that does not answer, and for one that is not
// asked: it has not answered before, or others of its control group have not.
var ErrSilent = errors.New("process does not answer")

const (
	// tick is how often it is looked whether anything moves on. A process is given up
	// when nothing has between two ticks.
	tick = 500 * time.Millisecond
	// maxSilent is for how many processes a thread waits at most, and maxSilentOf
	// for how many of one control group. A user who makes such processes prevents
	// no look at those of others.
	maxSilent   = 64
	maxSilentOf = 2
)

// Each calls look with every process in turn, and take with what it has returned, or
// with ErrSilent. step is for a look that takes its time: it says that something moves
// on. look only reads, as it may be left behind; take is never called after Each has
// returned, nor twice at a time.
func Each[T any](pids []int, look func(pid int, step func()) (T, error), take func(pid int, value T, err error)) {
	each(&others, pids, look, take)
}

// Ask is Each of one process.
func Ask[T any](pid int, look func() (T, error)) (value T, err error) {
	Each([]int{pid}, func(int, func()) (T, error) { return look() }, func(_ int, v T, e error) { value, err = v, e })
	return value, err
}

// Open is Ask for a descriptor. One that is opened too late is closed.
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

func each[T any](s *silence, pids []int, look func(int, func()) (T, error), take func(int, T, error)) {
	for len(pids) > 0 {
		r := round[T]{silence: s, pids: pids, look: look, take: take}
		pids = pids[r.run():]
	}
}

// round asks processes, until one is given up.
type round[T any] struct {
	*silence
	pids []int
	look func(int, func()) (T, error)
	take func(int, T, error)

	moves atomic.Int64
	mu    sync.Mutex
	taken int  // how many were asked, or passed over
	left  bool // the rest is not waited for
}

// run returns how many processes are done with.
func (r *round[T]) run() int {
	ctx, stop := r.watch()
	defer stop()
	_, err := bounded.Do(ctx, &r.calls, bounded.Call{}, func() (none struct{}, err error) {
		r.ask()
		return none, nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	var none T
	switch {
	case errors.Is(err, bounded.ErrTooMany):
		for _, pid := range r.pids {
			r.take(pid, none, ErrSilent)
		}
		return len(r.pids)
	case err == nil || r.taken == len(r.pids):
		return len(r.pids)
	}
	r.left = true
	pid := r.pids[r.taken]
	r.note(pid)
	r.take(pid, none, ErrSilent)
	return r.taken + 1
}

// watch returns a context that ends when nothing has moved on between two ticks.
func (r *round[T]) watch() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for before, still := int64(0), 0; still < 2; {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			if now := r.moves.Load(); now != before {
				before, still = now, 0
			} else {
				still++
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// ask asks one process after the other.
func (r *round[T]) ask() {
	for _, pid := range r.pids {
		var value T
		err := ErrSilent
		if r.asks(pid) {
			value, err = r.look(pid, func() { r.moves.Add(1) })
		}
		r.moves.Add(1)
		if !r.give(pid, value, err) {
			return
		}
	}
}

// give hands on what was read of a process, unless it is not waited for any more.
func (r *round[T]) give(pid int, value T, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		r.remove(pid)
		return false
	}
	r.take(pid, value, err)
	r.taken++
	return true
}

// silence is which processes do not answer.
type silence struct {
	calls bounded.Calls
	group func(pid int) string

	mu sync.Mutex
	of map[int]string // the control groups of processes for which a thread waits
}

var others = silence{calls: bounded.Calls{Total: maxSilent}, group: controlGroup}

// asks reports whether a process is to be asked.
func (s *silence) asks(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.of) == 0 {
		return true
	}
	if _, waits := s.of[pid]; waits {
		return false
	}
	alike, group := 0, s.group(pid)
	for _, other := range s.of {
		if other == group {
			alike++
		}
	}
	return alike < maxSilentOf
}

func (s *silence) note(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[int]string{}
	}
	s.of[pid] = s.group(pid)
}

func (s *silence) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, pid)
}

// controlGroup is the text of a file that the kernel shows of any process.
func controlGroup(pid int) string {
	text, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
	if err != nil {
		return strconv.Itoa(pid) // it has ended
	}
	return string(text)
}

// Ended reports whether err only means that the process, or its file, no longer exists.
func Ended(err error) bool { return errors.Is(err, sys.ENOENT) || errors.Is(err, sys.ESRCH) }
