// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"os"
	"testing"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestHolderThatEnds: a namespace that has ended since its mounts were found holds nothing, and leaves nothing unknown. One
// that is there still, but cannot be entered by the process that was seen in it, does.
func TestHolderThatEnds(t *testing.T) {
	for name, kept := range map[string]bool{"with its last process": false, "with one of two": true} {
		t.Run(name, func(t *testing.T) {
			process := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{}), "daemon")
			ns, err := mountns.Of(process.PID)
			kerneltest.Must(t, err)
			if kept {
				ns, err = mountns.Of(kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{}), "daemon").PID)
				kerneltest.Must(t, err)
				ns.ID, ns.PID = 0, process.PID
			}
			process.Kill()
			n := &inspection{
				node: &kubelet.Node{}, tables: map[uint64]*mountinfo.Table{}, unreadTables: map[uint64]string{}, verdicts: map[mountKey]tableVerdict{},
				claims: map[string]Claim{},
			}
			held := HolderInfo{Holder: devholder.Holder{Kind: devholder.Mount, Mount: mountns.Mount{Namespace: ns, Mount: mountinfo.Mount{ID: 1}}}}
			n.readTables([]mountns.Namespace{ns})
			n.judgeMount(t.Context(), &held, "")
			if held.TableUnread != kept || held.Removable {
				t.Errorf("%+v, want a table that is unread: %t", held, kept)
			}
		})
	}
}

// TestNamespacesWithoutProcesses: thousands of mount namespaces with a mount of a device may have no process that leads to them. A look goes over
// all namespaces of the machine a few times, and says that it did not read all tables.
func TestNamespacesWithoutProcesses(t *testing.T) {
	const many = 100
	own, err := mountns.Of(os.Getpid())
	kerneltest.Must(t, err)
	host, err := own.Owned()
	kerneltest.Must(t, err)
	n := &inspection{
		node: &kubelet.Node{}, host: host, tables: map[uint64]*mountinfo.Table{}, unreadTables: map[uint64]string{}, verdicts: map[mountKey]tableVerdict{},
		claims: map[string]Claim{},
	}
	var list []mountns.Namespace
	for i := range many {
		ns := mountns.Namespace{Inode: uint64(i + 1), ID: own.ID} // found by its ID, and not the wanted namespace
		if i%2 > 0 && own.ID != 0 {
			ns.ID = ^uint64(i) // there is none
		}
		list = append(list, ns)
	}
	walks := mountns.CountWalks()
	kerneltest.Must(t, n.spaces.addOwners(list))
	n.readTables(list)
	for _, ns := range list {
		n.claimNamespace(ns, nil)
	}
	if most := maxSearched + 2; walks() > most {
		t.Errorf("%d walks over the namespaces of the machine, want %d at the most", walks(), most)
	}
	if own.ID == 0 {
		return
	}
	if got := n.claimNamespace(list[1], nil).Foreign; got == "" {
		t.Errorf("a namespace that has ended may be entered: %q", got)
	}
}
