// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path"
	"sync"
	"time"
)

// Any process can call itself a kubelet, and name files and directories that do not answer.
const (
	// Patience is how long one process is waited for.
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

// patiently looks at a process, and gives up on one that keeps us waiting. What look does then comes to nothing.
func patiently[T any](s *stuck, p process, look func() T) (value T, ok bool) {
	key := p.dir + " " + p.started
	host, _ := os.Readlink(path.Join(path.Dir(p.dir), "1/ns/mnt")) // may not be read: then nobody is of the host
	if !s.enter(key, p.mounts, host) {
		return value, false
	}
	done := make(chan T, 1)
	go func() {
		value := look()
		s.leave(key) // before whoever waits comes again
		done <- value
	}()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case value = <-done:
		return value, true
	case <-timer.C:
		return value, false
	}
}
