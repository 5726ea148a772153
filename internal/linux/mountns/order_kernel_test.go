// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestForeignNamespacesComeLast: a namespace that any user can make, with few mounts, comes after one of a container with many. So it does not use
// up the room for mounts before that.
func TestForeignNamespacesComeLast(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	kerneltest.Needs(t, sys.HasNamespaceID)
	native := kerneltest.Flood(t, "", 200, 1)
	foreign := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "hold")
	var survey Survey
	list, err := kernelScan{limits: standardLimits}.listNamespaces(&survey)
	must(t, err)
	at := map[uint64]int{}
	for i, c := range list {
		at[c.Inode] = i + 1
	}
	first, last := at[inodeOfProcess(t, native.PID)], at[inodeOfProcess(t, foreign.PID)]
	if first == 0 || last == 0 || first > last {
		t.Errorf("the namespace of the node is number %d of %d, and that of another user number %d", first, len(list), last)
	}
}

// TestOwnersAreReadInOneWalk reads the owners of a namespace of the node, of a namespace of another user, and of an ID that no namespace has.
func TestOwnersAreReadInOneWalk(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	kerneltest.Needs(t, sys.HasNamespaceID)
	var list []Namespace
	for _, user := range []bool{false, true} {
		ns, err := Of(kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: user}), "hold").PID)
		must(t, err)
		list = append(list, ns)
	}
	walks := CountWalks()
	owners, err := Owners(append(list, Namespace{ID: ^uint64(0)}))
	must(t, err)
	if n := walks(); n != 1 || len(owners) != 2 {
		t.Errorf("%d walks, %d owners", n, len(owners))
	}
	for _, ns := range list {
		owned, err := ns.Owned()
		must(t, err)
		if owners[ns.ID] == 0 || owners[ns.ID] != owned.UserNamespace {
			t.Errorf("the owner is %d, want %d", owners[ns.ID], owned.UserNamespace)
		}
	}
	if owners[list[0].ID] == owners[list[1].ID] {
		t.Error("both have one owner")
	}
}

func inodeOfProcess(t *testing.T, pid int) uint64 {
	t.Helper()
	ns, err := Of(pid)
	must(t, err)
	return ns.Inode
}
