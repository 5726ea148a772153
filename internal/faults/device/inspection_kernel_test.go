// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
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
