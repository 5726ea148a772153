// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
)

// TestDaemonsAreSearchedOnce: while the same mounts, or some of them, are broken in the same way, their daemons are not searched again for a while.
func TestDaemonsAreSearchedOnce(t *testing.T) {
	t.Parallel()
	const noConnection = 1 << 31 // that no process serves
	hung := brokenMount{device{0, 7}, 70, probe.Hung}
	other := brokenMount{device{0, 8}, 80, probe.Hung}
	dead, again := hung, hung
	dead.state, again.unique = probe.Disconnected, 71
	for name, tt := range map[string]struct {
		ago    time.Duration
		mounts []brokenMount
		known  bool
	}{
		"the same":                    {time.Second, []brokenMount{hung, other}, true},
		"one of them":                 {time.Second, []brokenMount{other}, true},
		"too long ago":                {knownDaemonsTime, []brokenMount{hung}, false},
		"another state":               {time.Second, []brokenMount{dead}, false},
		"another mount of the number": {time.Second, []brokenMount{again}, false},
	} {
		c := &daemonCache{
			found: daemons{servers: map[uint32][]fuse.Server{noConnection: nil}}, at: time.Now().Add(-tt.ago), asked: map[brokenMount]bool{hung: true, other: true},
		}
		for range 2 { // a new search serves the next look
			found, err := c.get(t.Context(), tt.mounts)
			if err != nil {
				t.Fatal(err)
			}
			if _, known := found.servers[noConnection]; known != tt.known {
				t.Errorf("%s: the daemons of before are used: %t, want %t", name, known, tt.known)
			}
		}
		for _, m := range tt.mounts {
			if !c.asked[m] {
				t.Errorf("%s: the search was not for %+v", name, m)
			}
		}
	}
}
