// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/cri"
)

// TestOwnerCacheEnds keeps owners for a minute, and no more than its bound.
func TestOwnerCacheEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c ownerCache
		for i := range maxOwners + 1 {
			c.add(strconv.Itoa(i), cri.Owner{ContainerID: strconv.Itoa(i)})
		}
		if owner, ok := c.get("7"); !ok || owner.ContainerID != "7" {
			t.Errorf("owner %+v, %v, want container 7", owner, ok)
		}
		if _, ok := c.get(strconv.Itoa(maxOwners)); ok {
			t.Errorf("more than %d owners are kept", maxOwners)
		}
		<-time.After(ownerLifetime)
		if _, ok := c.get("7"); ok {
			t.Errorf("an owner is kept for more than %s", ownerLifetime)
		}
		if c.add("7", cri.Owner{}); len(c.owners) != 1 {
			t.Errorf("%d owners are kept, want 1", len(c.owners))
		}
	})
}
