// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/blockdev/krbdtest"
)

// KRBD is a root directory in which real loop devices are krbd's, and a driver that unmaps them.
type KRBD struct {
	*krbdtest.Tree
	// Refuse is what the driver answers; nil: it unmaps.
	Refuse error
	// Unmapped are the numbers that were written to the driver.
	Unmapped []string
}

// MapKRBD has the devices of the scenes be krbd's, and the first scene's inspector look there.
func MapKRBD(t *testing.T, scenes ...*Scene) *KRBD {
	t.Helper()
	k := &KRBD{Tree: krbdtest.New(t)}
	for i, s := range scenes {
		k.Map(i, s.Device.Major, s.Device.Minor)
	}
	scenes[0].Inspector.Finder.Sys = blockdev.Sys{Root: k.Root, Write: k.driver}
	return k
}

// driver is what the kernel does with what is written.
func (k *KRBD) driver(path, text string) error {
	if path != filepath.Join(k.Root, krbdtest.Remove) {
		return fmt.Errorf("write %q to %q: %w", text, path, os.ErrPermission)
	}
	if k.Refuse != nil {
		return k.Refuse
	}
	k.Unmapped = append(k.Unmapped, text)
	return k.Unmap(text)
}
