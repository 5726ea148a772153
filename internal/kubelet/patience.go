// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"sync"
	"time"
)

// Any process can call itself a kubelet, and name files and directories that do not answer.
const (
	// patience is how long one process is waited for.
	patience = 2 * time.Second
	// maxStuck is how many threads are left waiting for such paths at most. Then nobody else is looked at who would need one.
	maxStuck = 8
)

// stuck are the processes for which a thread still waits.
type stuck struct {
	mu sync.Mutex
	by map[string]bool
}

// enter tells whether a process may be waited for.
func (s *stuck) enter(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[key] || len(s.by) >= maxStuck {
		return false
	}
	if s.by == nil {
		s.by = map[string]bool{}
	}
	s.by[key] = true
	return true
}

func (s *stuck) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, key)
}

// patiently looks at a process, and gives up on one that keeps us waiting. What look does then comes to nothing.
func patiently[T any](s *stuck, p process, look func() T) (value T, ok bool) {
	key := p.dir
	if started, err := startTime(p.dir); err == nil {
		key += " " + started
	}
	if !s.enter(key) {
		return value, false
	}
	done := make(chan T, 1)
	go func() {
		value := look()
		s.leave(key) // before whoever waits comes again
		done <- value
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case value = <-done:
		return value, true
	case <-timer.C:
		return value, false
	}
}
