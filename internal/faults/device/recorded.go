// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"maps"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Evidence is what the node has answered about the devices that are left, so that it can be written down and judged
// again elsewhere.
type Evidence struct {
	KubeletPID int               `json:"kubeletPID"`
	Host       mountns.Namespace `json:"host"`
	// Table is the kubelet's mount table, and Tables are those of the namespaces that have a device. Both are empty if
	// no device is left.
	Table  []mountinfo.Mount            `json:"table,omitempty"`
	Tables map[uint64][]mountinfo.Mount `json:"tables,omitempty"`
	// Unread is why the table of a namespace could not be read.
	Unread map[uint64]string `json:"unread,omitempty"`
	// Processes are those that were asked for their container.
	Processes map[int]Process `json:"processes,omitempty"`
	// AlivePods says by UID why a pod is alive; empty: it is not.
	AlivePods map[string]string `json:"alivePods,omitempty"`
	// StayingPods says by UID why the kubelet need not have done with a pod yet.
	StayingPods map[string]string `json:"stayingPods,omitempty"`
	// StagedVolumes are the names of volumes by staging path, from the kubelet's records.
	StagedVolumes map[string]string `json:"stagedVolumes,omitempty"`
	SeesAll       bool              `json:"seesAll"`
	// Claims say by namespace and container whether the namespace may be entered for it.
	Claims  map[string]Claim `json:"claims,omitempty"`
	Devices []DeviceEvidence `json:"devices"`
}

// Claim is a namespace that may be entered, or why not.
type Claim struct {
	Namespace mountns.Namespace `json:"namespace"`
	Foreign   string            `json:"foreign,omitempty"`
}

// Process is who a process is.
type Process struct {
	Command string     `json:"command,omitempty"`
	Owner   *cri.Owner `json:"owner,omitempty"`
	// Unknown is why the owner is not known, if there may be one.
	Unknown string `json:"unknown,omitempty"`
	Gone    bool   `json:"gone,omitempty"`

	confirmed bool // whether it is known that it is not gone otherwise
}

// DeviceEvidence is one device.
type DeviceEvidence struct {
	Report devholder.Report `json:"report"`
	// Untested is why the kernel could not be asked for it, and NoAnswer whether it did not answer.
	Untested string `json:"untested,omitempty"`
	NoAnswer bool   `json:"noAnswer,omitempty"`
	// Left is set for a loop device of a pod that is no more.
	Left *LeftLoop `json:"left,omitempty"`
	// Unseen says why there may be processes in a namespace in which none was found.
	Unseen string `json:"unseen,omitempty"`
}

// FindAbandonedWithEvidence is FindAbandoned, with what it rests on.
func (i *Inspector) FindAbandonedWithEvidence(ctx context.Context) ([]*Usage, *Evidence, error) {
	found, err := i.findAbandoned(ctx)
	if err != nil {
		return nil, nil, err
	}
	n := found.inspection
	evidence := &Evidence{
		KubeletPID: n.node.PID, Host: n.host, AlivePods: n.aliveReasons, StayingPods: n.stayingReasons, SeesAll: n.seesAll, Devices: []DeviceEvidence{},
		Tables: map[uint64][]mountinfo.Mount{}, Unread: n.unreadTables, Processes: n.processes, Claims: n.claims, StagedVolumes: n.stagedVolumes,
	}
	for _, r := range found.reports {
		of := DeviceEvidence{Report: *r, Left: n.left[r.Device.Name], Unseen: describeUnseen(r.Coverage.Mounts)}
		if of.Report.Untested != nil {
			of.Untested, of.NoAnswer, of.Report.Untested = r.Untested.Error(), errors.Is(r.Untested, blockdev.ErrNoAnswer), nil
		}
		evidence.Devices = append(evidence.Devices, of)
		evidence.Table = n.table.Mounts()
	}
	for inode, table := range n.tables {
		evidence.Tables[inode] = table.Mounts()
	}
	return found.usages, evidence, nil
}

// Judge makes the cases again from evidence alone. n gives paths alone.
func (e *Evidence) Judge(ctx context.Context, n *kubelet.Node) ([]*Usage, error) {
	of := *n
	of.PID = e.KubeletPID
	inspection := &inspection{
		inspector: &Inspector{Kubelet: n}, recorded: true, node: &of, host: e.Host, table: mountinfo.NewTable(e.Table), tables: map[uint64]*mountinfo.Table{},
		processes: map[int]Process{}, aliveReasons: map[string]string{}, stayingReasons: map[string]string{}, unreadTables: map[uint64]string{}, seesAll: e.SeesAll,
		claims: map[string]Claim{}, stagedVolumes: map[string]string{}, verdicts: map[mountKey]tableVerdict{},
	}
	maps.Copy(inspection.processes, e.Processes)
	maps.Copy(inspection.aliveReasons, e.AlivePods)
	maps.Copy(inspection.stayingReasons, e.StayingPods)
	maps.Copy(inspection.claims, e.Claims)
	maps.Copy(inspection.stagedVolumes, e.StagedVolumes)
	maps.Copy(inspection.unreadTables, e.Unread)
	for inode, mounts := range e.Tables {
		inspection.tables[inode] = mountinfo.NewTable(mounts)
	}
	var cases []*Usage
	for _, d := range e.Devices {
		if d.Untested != "" {
			d.Report.Untested = recordedError{d.Untested, d.NoAnswer}
		}
		inspection.unseenReason = d.Unseen
		usage, err := inspection.usageOf(ctx, &d.Report)
		if err != nil {
			return nil, err
		}
		if d.Left != nil {
			usage.setLeft(d.Left)
		}
		cases = append(cases, usage)
	}
	return cases, nil
}

// recordedError is why a device could not be asked for, as it was written down.
type recordedError struct {
	message  string
	noAnswer bool
}

// Error is the text.
func (u recordedError) Error() string { return u.message }

// Is reports whether the device did not answer.
func (u recordedError) Is(target error) bool { return u.noAnswer && target == blockdev.ErrNoAnswer }

// MountNamespaces are the numbers of the mount namespaces with a device, each with a process in it; 0: none is known.
func (e *Evidence) MountNamespaces() map[uint64]int {
	all := map[uint64]int{}
	for _, d := range e.Devices {
		for _, h := range d.Report.Holders {
			ns := h.Mount.Namespace
			if all[ns.Inode] = max(all[ns.Inode], ns.PID); len(h.PIDs) > 0 {
				all[ns.Inode] = h.PIDs[0]
			}
		}
	}
	return all
}
