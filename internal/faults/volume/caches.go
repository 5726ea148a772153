// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"maps"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
)

const (
	// maxRemembered bounds what is remembered of mounts, and of containers, that others make: beyond that they are
	// asked for again in each inspection.
	maxRemembered = 16_384
	// unrelatedLifetime is for how long a mount of no volume is passed over, and ownerLifetime for how long the runtime
	// is not asked again about a container.
	unrelatedLifetime = 10 * time.Minute
	ownerLifetime     = time.Minute
)

// expiring is a map whose entries last for a time. Its zero value is ready for use.
type expiring[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]expiringEntry[V]
}

type expiringEntry[V any] struct {
	value V
	until time.Time
}

func (e *expiring[K, V]) get(key K) (value V, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	entry, ok := e.entries[key]
	return entry.value, ok && time.Now().Before(entry.until)
}

func (e *expiring[K, V]) add(key K, value V, lasts time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.entries == nil {
		e.entries = map[K]expiringEntry[V]{}
	}
	if len(e.entries) < maxRemembered {
		e.entries[key] = expiringEntry[V]{value, time.Now().Add(lasts)}
	}
}

// removeExpired removes the entries whose time is over.
func (e *expiring[K, V]) removeExpired() {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.entries, func(_ K, entry expiringEntry[V]) bool { return time.Now().After(entry.until) })
}

// unrelatedMounts are mounts of no volume, by the kernel's number that is never used again: a container may well have a
// file system of its own, and its owner need not be asked for in every inspection.
type unrelatedMounts struct{ expiring[uint64, struct{}] }

func (u *unrelatedMounts) contains(unique uint64) bool {
	_, known := u.get(unique)
	return known && unique != 0
}

// ownerCache has containers by the text of their cgroup, which has the ID of the container, and that is never
// another's. The runtime's answer stays the same for as long as the container is there. Each repair looks at all
// containers of the node that have a file system which may hang: for a thousand repairs, a runtime would be asked a
// million times.
type ownerCache struct{ expiring[string, cri.Owner] }
