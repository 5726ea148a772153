// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys_test

import (
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestLookupCachedKnowsWhatWasJustUsed(t *testing.T) {
	t.Parallel()
	kerneltest.Needs(t, sys.HasCachedLookup)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := sys.LookupCached(nil, file)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType | sys.StatNlink)
	if err != nil || st.Nlink != 1 || st.IsDir() {
		t.Errorf("stat %+v, %v, want a file with one link", st, err)
	}
}

func TestFDMountIDIsThatOfStatx(t *testing.T) {
	t.Parallel()
	kerneltest.Needs(t, sys.HasMountID)
	fd, err := sys.Lookup("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatMountID)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := fd.FDMountID(); err != nil || id != int(st.MountID) {
		t.Errorf("fdinfo says %d, %v, statx %d", id, err, st.MountID)
	}
}
