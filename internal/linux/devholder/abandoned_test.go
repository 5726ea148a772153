// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// TestNamespacesShareTheSearch has one namespace mount more file systems than are searched for. Those of the others are all chosen.
func TestNamespacesShareTheSearch(t *testing.T) {
	t.Parallel()
	var all []mountns.FileSystem
	add := func(namespace uint64, number int) {
		all = append(all, mountns.FileSystem{Mount: mountns.Mount{
			Mount: mountinfo.Mount{Minor: uint32(number)}, Namespace: mountns.Namespace{Inode: namespace},
		}})
	}
	for i := range 2 * maxFileSystems {
		add(1, i)
	}
	for i := range 10 {
		add(2, 10_000+i)
		add(3, 20_000+i)
	}
	survey := mountns.Survey{}
	chosen := chooseFileSystems(all, &survey)
	others := 0
	for _, d := range chosen {
		if d.Minor >= 10_000 {
			others++
		}
	}
	if len(chosen) != maxFileSystems || others != 20 || len(survey.Skipped) != 1 || !strings.HasPrefix(survey.Skipped[0], "276 file systems") {
		t.Errorf("%d chosen, %d of the others, skipped %q", len(chosen), others, survey.Skipped)
	}
	if chosen = chooseFileSystems(all[:3], &mountns.Survey{}); len(chosen) != 3 {
		t.Errorf("of three: %v", chosen)
	}
}
