// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package nodemount

import (
	"context"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// maxUnmounts bounds how many mounts one plan removes.
const maxUnmounts = 256

// Plan returns the faults at a path, or all of the node if that is empty, with the unmounts that repair them, the topmost mounts first.
// refusals say why others stay. It changes nothing.
func (i *Inspector) Plan(ctx context.Context, path string) (found []fault.Finding, actions []fault.Action, refusals []string, err error) {
	e, err := i.Look(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	var unique map[int]uint64 // before Linux 6.8 there are none
	if len(e.Stacks)+len(e.Staged) > 0 {
		err = node.Do(ctx, func() (err error) {
			unique, err = mountns.UniqueIDs()
			return err
		})
	}
	if err != nil {
		return nil, nil, nil, err
	}
	for n, f := range e.Judge(&node.Layout, nil).Findings {
		switch {
		case path != "" && f.Details.Path != path:
		case f.Details.Repair == "":
			refusals = append(refusals, fmt.Sprintf("the mounts at %q stay: %s", f.Details.Path, f.Details.Refusal.Text))
		case len(actions) == maxUnmounts:
			refusals = append(refusals, fmt.Sprintf("the mounts at %q are left for another run: no more than %d are removed at once", f.Details.Path, maxUnmounts))
		default:
			f.Mount.ID = unique[f.Mount.MountInfoID]
			found = append(found, f)
			for _, m := range e.removable(n)[:min(len(e.removable(n)), maxUnmounts-len(actions))] {
				m.Unique = unique[m.ID]
				actions = append(actions, unmountAction(f, faults.MountOf(m)))
			}
		}
	}
	return found, actions, refusals, ctx.Err()
}

// removable are the mounts that may go for the n-th finding, the topmost first.
func (e *Evidence) removable(n int) []mountns.Mount {
	if n < len(e.Stacks) {
		return e.Stacks[n].surplus[:e.Stacks[n].Surplus]
	}
	return []mountns.Mount{e.Staged[n-len(e.Stacks)].mount}
}

// unmountAction is the unmount of a mount because of a finding.
func unmountAction(f fault.Finding, at fault.Mount) fault.Action {
	a := fault.Action{
		Kind: fault.Unmount, For: []fault.Key{f.Key()}, Target: at.Point, Mount: &at, Lossless: true, Loss: "nothing: the same shows there afterwards",
		Safety: "it equals the mount beneath it in device, directory, options and propagation, nothing else lies on either, and the unmount spreads to no other; the " +
			"kernel removes it only while nothing has a file of it open",
	}
	if f.Details.Place == fault.PlaceStaging {
		a.Loss = "nothing: what was written is on the volume, and a new pod has it staged again"
		a.Safety = "no pod of the node has the volume, and the kubelet cannot have it staged before a controller has attached it, which is checked again right before; the " +
			"kernel removes it only while nothing has a file of it open"
	}
	return a
}

// Left says how many mounts lie at each of some places, that of the mounts included which are to be gone. there are those of the mounts
// that are still in the table.
func (i *Inspector) Left(ctx context.Context, actions []fault.Action) (layers map[string]int, there []fault.Mount, err error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, nil, err
	}
	ns, table, err := node.OwnedMounts()
	if err != nil {
		return nil, nil, err
	}
	layers = map[string]int{}
	for _, a := range actions {
		if top, ok := table.Top(a.Mount.Point); ok {
			layers[a.Mount.Point] = len(table.Stack(top))
		}
		m, ok := table.ByID(a.Mount.MountInfoID)
		if found := faults.MountOf(mountns.Mount{Mount: m, Namespace: ns}); ok && found.Same(fault.Mount{
			MountInfoID: a.Mount.MountInfoID, ParentID: a.Mount.ParentID, Namespace: a.Mount.Namespace, Device: a.Mount.Device, Root: a.Mount.Root, Point: a.Mount.Point,
		}) {
			there = append(there, *a.Mount)
		}
	}
	return layers, there, ctx.Err()
}
