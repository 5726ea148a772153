// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"maps"
	"sync"
)

// maxKnownSystems is the number of mounts whose file systems are remembered: as many as one pass lists. They take 16 MiB. Namespaces with
// few mounts come first.
const maxKnownSystems = 1_000_000

// systemOf is the file system of a mount. It never changes: the kernel uses the number of a mount once, and a mount stays one of
// its file system.
type systemOf struct {
	unique  uint64
	major   uint16 // of 12 bits
	mayHang bool
	minor   uint32
}

// knownSystems remembers the file systems of mounts, for all passes. An attacker may have a hundred thousand mounts for each of a victim, and the
// kernel takes a microsecond to describe each of them. No pass misses a mount by it, or finds a mount that is gone: each lists all mounts
// itself, and reads the mounts that are wanted from the kernel.
type knownSystems struct {
	mu     sync.Mutex
	of     map[uint64][]systemOf // by number of the namespace; ascending
	mounts int
}

// ofAll is for all passes of this program.
var ofAll knownSystems

// get returns the known mounts of a namespace. They are not to be changed.
func (k *knownSystems) get(namespace uint64) []systemOf {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[namespace]
}

// put remembers the mounts of a namespace, if there is room.
func (k *knownSystems) put(namespace uint64, mounts []systemOf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mounts -= len(k.of[namespace])
	delete(k.of, namespace)
	if len(mounts) == 0 || k.mounts+len(mounts) > maxKnownSystems {
		return
	}
	if k.of == nil {
		k.of = map[uint64][]systemOf{}
	}
	k.of[namespace] = mounts
	k.mounts += len(mounts)
}

// keep forgets all namespaces but these.
func (k *knownSystems) keep(namespaces []countedNamespace) {
	there := make(map[uint64]bool, len(namespaces))
	for _, ns := range namespaces {
		there[ns.ID] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.of, func(namespace uint64, mounts []systemOf) bool {
		if !there[namespace] {
			k.mounts -= len(mounts)
		}
		return !there[namespace]
	})
}
