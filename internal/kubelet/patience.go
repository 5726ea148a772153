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

// Any process can call itself a kubelet, name files and directories that do not answer, and have its arguments lie in such a file.
const (
	// Patience is how long is waited for all processes of one search, and for what is read of the kubelet later.
	Patience = 2 * time.Second
	// maxStuckIn is for how many processes of one mount namespace a thread waits at most, and maxStuck for how many of
	// all namespaces but that of process 1. A user who makes containers full of such processes prevents no look at a
	// kubelet of the host.
	maxStuckIn = 4
	maxStuck   = 64
)

// callers are the calls that look at processes which may be our kubelet. One that was left behind is not made again.
type callers struct {
	host, others bounded.Calls
	once         sync.Once
}

// of returns those for a process. host is the mount namespace of process 1.
func (c *callers) of(p process, host string) (*bounded.Calls, bounded.Call) {
	c.once.Do(func() { c.host.PerOwner, c.others.PerOwner, c.others.Total = maxStuckIn, maxStuckIn, maxStuck })
	call := bounded.Call{Key: p.key(), Owner: p.mounts}
	if p.mounts == host {
		return &c.host, call
	}
	return &c.others, call
}

// askEach looks at processes, and gives up on those that keep us waiting. The result of look is dropped then. Those of
// one mount namespace come one after the other, and namespaces side by side: one that waits holds up none but its own.
// All together have the time of Patience.
func askEach[T any](ctx context.Context, c *callers, processes []process, look func(process) T) (values []T, silent []process, err error) {
	limit, cancel := context.WithTimeout(ctx, Patience)
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
				answers[i] = patiently(limit, c, processes[i], look)
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

// patiently looks at one process as long as there is time; nil: there was not enough.
func patiently[T any](limit context.Context, c *callers, p process, look func(process) T) *T {
	if limit.Err() != nil {
		return nil
	}
	host, _ := os.Readlink(path.Join(path.Dir(p.dir), "1/ns/mnt")) // may not be read: then no process is of the host
	calls, call := c.of(p, host)
	value, err := bounded.Do(limit, calls, call, func() (T, error) { return look(p), nil })
	if errors.Is(err, bounded.ErrNoAnswer) {
		return nil
	}
	return &value
}

// lookups are the calls that read files on behalf of a kubelet that was found.
var lookups = bounded.Calls{Total: maxStuck}

// within reads something, and gives up on it when the time of Patience is over (bounded.ErrNoAnswer). Until it has returned it is
// not read again.
func within[T any](ctx context.Context, what string, read func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return bounded.Do(ctx, &lookups, bounded.Call{Key: what}, read)
}
