// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"

	"kubediag.org/kubediag/internal/linux/sys"
)

// UniqueIDs returns the number that is never used again of each mount of the calling thread's namespace, by its number in
// mountinfo. Before Linux 6.8 there are no such numbers, and the result is empty.
func UniqueIDs() (map[int]uint64, error) {
	if missing := sys.HasStatmount.Probe(); missing != nil {
		return nil, nil //nolint:nilerr // then the kernel has no such numbers
	}
	noteRead(0)
	ids, err := sys.ListAllMounts(nil, 0)
	if err != nil {
		return nil, err
	}
	var stat sys.MountStat
	numbers := make(map[int]uint64, len(ids))
	for _, id := range ids {
		err := stat.Load(sys.MountRef{Mount: id}, sys.StatmountBasic)
		if err != nil && !errors.Is(err, sys.ENOENT) {
			return nil, err
		}
		if err == nil {
			numbers[stat.ReusedID()] = id
		}
	}
	return numbers, nil
}
