// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"testing"

	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// TestRefusalWithoutAnAnswer distinguishes a mount that has not answered just now from one whose fault is gone: another try helps the first alone.
func TestRefusalWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	m := mountns.Mount{Mount: mountinfo.Mount{ID: 7, Parent: 1, Point: "/v", Root: "/", FSType: "fuse"}, Unique: 70}
	other := m
	other.ID, other.Unique = 8, 80
	for name, c := range map[string]struct {
		state probe.State
		of    mountns.Mount
		want  bool
	}{
		"silent":                    {probe.Silent, m, true},
		"hung":                      {probe.Hung, m, true},
		"no time to ask":            {probe.NotProbed, m, true},
		"alive":                     {probe.Alive, m, false},
		"disconnected":              {probe.Disconnected, m, false},
		"another mount that is not": {probe.Hung, other, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volume := &Health{}
			volume.Evidence.Mount, volume.Evidence.Answer = c.of, probe.Answer{State: c.state}
			copied := &Copy{}
			copied.Mount, copied.Answer = c.of, probe.Answer{State: c.state}
			for what, n := range map[string]*inspection{"volume": {volumes: []*Health{volume}}, "copy": {copies: []*Copy{copied}}} {
				err := n.noAnswer(faults.MountOf(m))
				if got := errors.Is(err, ErrRefused) && errors.Is(err, ErrHung); got != c.want || (err != nil) != c.want {
					t.Errorf("a %s: %v, want ErrHung: %v", what, err, c.want)
				}
			}
		})
	}
}
