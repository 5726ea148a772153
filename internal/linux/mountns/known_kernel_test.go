// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"slices"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// hangingIn returns the mounts of a namespace that may hang, as searches of the agent find them.
func hangingIn(t *testing.T, inode uint64) (found []Mount) {
	t.Helper()
	all, survey, err := (*Pass)(nil).MatchingMounts(func(b *MountBrief) bool {
		if b.Parent != 0 {
			t.Errorf("the parent %d of a mount is told, which may change", b.Parent)
		}
		return b.Namespace.Inode == inode && b.MayHang
	})
	must(t, err)
	if survey.Backend != "kernel" {
		return all
	}
	t.Logf("%d mounts in %d namespaces, %d remembered", survey.Mounts, survey.Namespaces, ofAll.mounts)
	return all
}

// TestOnlyWhatNeverChangesIsRemembered: a search sees each mount that has come since the last one, none that has gone, and its place as it
// is now. It reads the file system of no mount that was there before. A namespace that has gone is forgotten.
func TestOnlyWhatNeverChangesIsRemembered(t *testing.T) {
	host, err := Self()
	must(t, err)
	first, second, moved := t.TempDir(), t.TempDir(), t.TempDir()
	points := func() (all []string) {
		for _, m := range hangingIn(t, host.Inode) {
			if slices.Contains([]string{first, second, moved}, m.Point) {
				all = append(all, m.Point)
			}
		}
		slices.Sort(all)
		return all
	}
	want := func(wanted ...string) {
		t.Helper()
		slices.Sort(wanted)
		for range 2 {
			if got := points(); !slices.Equal(got, wanted) {
				t.Errorf("found %q, want %q", got, wanted)
			}
		}
	}
	want()
	kerneltest.FUSE(t, first)
	want(first)
	kerneltest.FUSE(t, second)
	want(first, second)
	must(t, systest.MoveMountTo(second, moved))
	want(first, moved)
	must(t, systest.UnmountPath(moved, false))
	want(first)
	if ofAll.of == nil {
		return // the kernel has no numbers that are used once
	}
	hold := kerneltest.Start(t, "hold")
	inode, _ := inodeOf(hold.Answer)
	if len(hangingIn(t, inode)) == 0 {
		t.Fatal("the mounts of another namespace are not found")
	}
	ns := hangingIn(t, inode)[0].Namespace.ID
	known := ofAll.get(ns)
	if len(known) == 0 || !slices.IsSortedFunc(known, func(a, b systemOf) int { return int(int64(a.unique) - int64(b.unique)) }) {
		t.Fatalf("%d mounts of namespace %d are remembered, or they are in no order", len(known), ns)
	}
	changed := slices.Clone(known)
	for i := range changed {
		changed[i].mayHang = false
	}
	ofAll.put(ns, changed)
	if found := hangingIn(t, inode); len(found) != 0 {
		t.Errorf("the file systems of mounts that are known were read again: %v", found)
	}
	ofAll.put(ns, known)
	hold.End()
	hangingIn(t, host.Inode)
	if len(ofAll.get(ns)) != 0 {
		t.Errorf("namespace %d has gone, and is remembered", ns)
	}
	mounts := 0
	for _, of := range ofAll.of {
		mounts += len(of)
	}
	if mounts != ofAll.mounts {
		t.Errorf("%d mounts are remembered, and %d were counted", mounts, ofAll.mounts)
	}
}
