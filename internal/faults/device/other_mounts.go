// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"

	"kubediag.org/kubediag/internal/linux/mountns"
)

// OtherMounts are the mounts of one namespace that are none of a plan's business, and the processes in it. They show
// afterwards that all is as it was.
type OtherMounts struct {
	Namespace uint64 `json:"namespace"`        // inode
	ID        uint64 `json:"id,omitempty"`     // the kernel's number, never used again; 0 before 6.12
	PIDs      []int  `json:"pids,omitempty"`   // in it, 16 at most
	Mounts    []int  `json:"mounts,omitempty"` // by their numbers in mountinfo
}

// ListOtherMounts lists the other mounts in the namespaces that hold the devices: mounts that only those in the
// namespace can take away. Mounts in the kubelet's directories of volumes come and go with pods, and those that follow
// another namespace with that.
func (i *Inspector) ListOtherMounts(ctx context.Context, copies []HolderInfo) ([]OtherMounts, error) {
	inspection, err := i.newInspection(ctx)
	if err != nil {
		return nil, err
	}
	var all []OtherMounts
	seen := map[uint64]bool{}
	for _, h := range copies {
		ns := h.Mount.Namespace
		if seen[ns.Inode] {
			continue
		}
		seen[ns.Inode] = true
		table, err := inspection.namespaceTable(ns)
		if err != nil {
			return nil, err
		}
		tables, pids := mountTables{layoutOf(inspection.node), inspection.table, table}, holderPIDs(h.Holder)
		n := OtherMounts{Namespace: ns.Inode, ID: ns.ID, PIDs: pids[:min(len(pids), maxAsked)]}
		for _, m := range table.Mounts() {
			parent, ok := table.ByID(m.Parent)
			if m.Master != 0 || m.Shared != 0 || ok && (parent.Master != 0 || parent.Shared != 0) {
				continue
			}
			if volume, all := tables.hostVolumePath(m, parent); !ok || volume == "" && all {
				n.Mounts = append(n.Mounts, m.ID)
			}
		}
		all = append(all, n)
	}
	return all, nil
}

// Recheck finds the other mounts again: which of the mounts have gone, and whether one of the processes is still there.
// gone is whether the namespace itself is no more.
func (n OtherMounts) Recheck() (missing []int, alive, gone bool, err error) {
	spaces, survey, err := mountns.Namespaces()
	if err != nil {
		return nil, false, false, err
	}
	for _, pid := range n.PIDs {
		if ns, err := mountns.Of(pid); err == nil && ns.Same(mountns.Namespace{Inode: n.Namespace, ID: n.ID}) {
			alive = true
		}
	}
	for _, ns := range spaces {
		if !ns.Same(mountns.Namespace{Inode: n.Namespace, ID: n.ID}) {
			continue
		}
		err := ns.Do(func() error {
			table, err := mountns.Table(0)
			for _, id := range n.Mounts {
				if err == nil {
					if _, ok := table.ByID(id); !ok {
						missing = append(missing, id)
					}
				}
			}
			return err
		})
		return missing, alive, false, err
	}
	return nil, alive, true, survey.CheckComplete()
}
