// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
)

// Any process can call itself a kubelet, name files and directories that do not answer, and have its arguments lie in
// such a file.
const (
	// SearchTimeout bounds the wait for all processes of one search, and each later read of the kubelet's files.
	SearchTimeout = 2 * time.Second
	// maxStuckPerNamespace bounds the threads that wait for processes of one mount namespace, and maxStuck those of all
	// namespaces except that of process 1. A user who makes containers full of such processes cannot prevent
	// the search of a kubelet of the host.
	maxStuckPerNamespace = 4
	maxStuck             = 64
)

// processCalls are the calls that read processes which may be our kubelet. A call that was left behind is not made
// again.
type processCalls struct {
	host, others bounded.Calls
	once         sync.Once
}

// callsFor returns the calls for a process. host is the mount namespace of process 1.
func (c *processCalls) callsFor(p candidateProcess, host string) (*bounded.Calls, bounded.Call) {
	c.once.Do(func() {
		c.host.PerOwner, c.others.PerOwner, c.others.Total = maxStuckPerNamespace, maxStuckPerNamespace, maxStuck
	})
	call := bounded.Call{Key: p.identityKey(), Owner: p.mounts}
	if p.mounts == host {
		return &c.host, call
	}
	return &c.others, call
}

// askEach calls look for each process, and gives up on processes that do not answer. The result of look is dropped then.
// Processes of one mount namespace come one after the other, and namespaces side by side: a process that waits holds up
// only its own namespace. All together have SearchTimeout.
func askEach[T any](ctx context.Context, c *processCalls, processes []candidateProcess,
	look func(candidateProcess) T) (values []T, silent []candidateProcess, err error) {
	limit, cancel := context.WithTimeout(ctx, SearchTimeout)
	defer cancel()
	spaces := map[string][]int{} // by mount namespace: which processes
	for i, p := range processes {
		key := cmp.Or(p.mounts, p.dir)
		spaces[key] = append(spaces[key], i)
	}
	answers := make([]*T, len(processes))
	var all sync.WaitGroup
	for _, members := range spaces {
		all.Go(func() {
			for _, i := range members {
				if limit.Err() != nil {
					return // no time is left for the others
				}
				p := processes[i]
				host, _ := os.Readlink(path.Join(path.Dir(p.dir), "1/ns/mnt")) // may not be read: then no process is of the host
				calls, call := c.callsFor(p, host)
				value, err := bounded.Do(limit, calls, call, func() (T, error) { return look(p), nil })
				if !errors.Is(err, bounded.ErrNoAnswer) {
					answers[i] = &value
				}
			}
		})
	}
	all.Wait()
	for i, answer := range answers {
		if answer == nil {
			silent = append(silent, processes[i])
		} else {
			values = append(values, *answer)
		}
	}
	return values, silent, ctx.Err()
}

// lookupCalls are the calls that read files on behalf of a kubelet that was found.
var lookupCalls = bounded.Calls{Total: maxStuck}

// readWithin calls read, and gives up on it after SearchTimeout (bounded.ErrNoAnswer). It does not call read again for
// this name before that has returned.
func readWithin[T any](ctx context.Context, name string, read func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, SearchTimeout)
	defer cancel()
	return bounded.Do(ctx, &lookupCalls, bounded.Call{Key: name}, read)
}
