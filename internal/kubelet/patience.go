// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"os"
	"path"
	"sync"
	"time"
)

// Any process can call itself a kubelet, and name files and directories that do not answer.
const (
	// Patience is how long is waited for all processes of one search.
	Patience = 2 * time.Second
	// maxStuckIn is for how many processes of one mount namespace a thread is left waiting at most, and maxStuck for how many
	// of all but that of process 1: whoever makes containers full of such processes keeps nobody from looking at a kubelet of
	// the host.
	maxStuckIn = 4
	maxStuck   = 64
)

// stuck are the processes for which a thread still waits.
type stuck struct {
	mu sync.Mutex
	by map[string]string // to the mount namespace
}

// enter tells whether a process may be waited for. host is the mount namespace of process 1.
func (s *stuck) enter(key, namespace, host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	there, elsewhere := 0, 0
	for _, other := range s.by {
		if other == namespace {
			there++
		}
		if other != host {
			elsewhere++
		}
	}
	if _, waits := s.by[key]; waits || there >= maxStuckIn || namespace != host && elsewhere >= maxStuck {
		return false
	}
	if s.by == nil {
		s.by = map[string]string{}
	}
	s.by[key] = namespace
	return true
}

func (s *stuck) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, key)
}

// askEach looks at processes, and gives up on those that keep us waiting. What look does then comes to nothing. Those of
// one mount namespace come one after the other, and namespaces side by side: one that waits holds up none but its own. All
// together have the time of Patience.
func askEach[T any](ctx context.Context, s *stuck, processes []process, look func(process) T) (values []T, silent []process, err error) {
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
				answers[i] = patiently(limit, s, processes[i], look)
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
func patiently[T any](limit context.Context, s *stuck, p process, look func(process) T) *T {
	key := p.dir + " " + p.started
	host, _ := os.Readlink(path.Join(path.Dir(p.dir), "1/ns/mnt")) // may not be read: then nobody is of the host
	if limit.Err() != nil || !s.enter(key, p.mounts, host) {
		return nil
	}
	done := make(chan T, 1)
	go func() {
		value := look(p)
		s.leave(key) // before whoever waits comes again
		done <- value
	}()
	select {
	case value := <-done:
		return &value
	case <-limit.Done():
		return nil
	}
}
