// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
)

const (
	// ownerLifetime is for how long the runtime is not asked again about a container.
	ownerLifetime = time.Minute
	// maxOwners bounds how many texts of cgroups are kept, as a container may make its own: the runtime is asked for the
	// others in each inspection.
	maxOwners = 16_384
)

// ownerCache has containers by the text of their cgroup, which has the ID of the container, and that is never
// another's. It is kept from one inspection to the next because each repair inspects all containers of the node that have
// a file system which may hang: for a driver's daemon with 250 pods, a runtime would be asked 62,500 times.
type ownerCache struct {
	mu     sync.Mutex
	began  time.Time // all entries end together
	owners map[string]cri.Owner
}

func (c *ownerCache) get(cgroup string) (owner cri.Owner, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	owner, ok = c.owners[cgroup]
	return owner, ok && time.Since(c.began) < ownerLifetime
}

func (c *ownerCache) add(cgroup string, owner cri.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.began) >= ownerLifetime {
		c.began, c.owners = time.Now(), map[string]cri.Owner{}
	}
	if len(c.owners) < maxOwners {
		c.owners[cgroup] = owner
	}
}
