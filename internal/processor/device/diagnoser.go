// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/processor"
)

// Keys of the results. Those that hold one of several hold the first.
const (
	keyDiagnoserResult  = "diagnoser.system.held_device.result"
	keyDiagnoserResults = "diagnoser.system.held_device.results"
	keyDiagnoserDevice  = "diagnoser.system.held_device.device"
	keyDiagnoserDevices = "diagnoser.system.held_device.devices"
	keyDiagnoserHolders = "diagnoser.system.held_device.holders"
	keyDiagnoserPatch   = "diagnoser.system.held_device.patch"
	keyDiagnoserPatches = "diagnoser.system.held_device.patches"
)

// Diagnoser is the processor heldDeviceDiagnoser.
//
// It diagnoses devices that cannot be detached because a mount namespace still mounts them, though the host has
// unmounted them, and file systems on no device of which that is true. Usually a container got a copy of all mounts of the host when it started. It decides from the mount
// tables of all namespaces, and from the kernel's answer about each device. A device, a volume or a message in the
// parameters narrows the search and proves nothing. Without them, so does a pod: to the devices behind its volumes. It changes nothing. For a device that is not held, it gives the
// device's state.
type Diagnoser struct {
	Inspector *device.Inspector
}

// Name is heldDeviceDiagnoser.
func (*Diagnoser) Name() string { return "heldDeviceDiagnoser" }

// Parameters are those that it reads.
func (*Diagnoser) Parameters() []string {
	return []string{device.ParamDevice, device.ParamPersistentVolume, device.ParamMessage}
}

// Run looks at the devices that the parameters name, at those of the pod, or at all that are left behind.
func (d *Diagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	s, elsewhere, err := selectionOf(ctx, d.Inspector, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	choice, err := d.Inspector.Select(ctx, s)
	if errors.Is(err, device.ErrParameter) {
		return processor.Result{}, processor.Stalled(err)
	}
	if err != nil {
		return processor.Result{}, err
	}
	var rest, unjudged []string
	held := slices.Clone(choice.Abandoned)[:0]
	for _, c := range choice.Abandoned {
		// With nothing named, a container that has a device of its own is as it should be.
		if c.IsHeld() && (s.Device != "" || c.HasCopies()) {
			held = append(held, c)
		} else {
			rest = append(rest, c.Describe())
			if c.IsHeld() && c.HasUnreadTable() {
				unjudged = append(unjudged, c.Describe())
			}
		}
	}
	if len(held) == 0 {
		return processor.Result{NotApplicable: joinReasons("no device is held: ", slices.Concat(choice.Others, rest), noneAbandoned(s)), Unjudged: unjudged}, nil
	}
	result, err := heldResult(held)
	result.Unjudged = unjudged
	return result, err
}

// maxReasons bounds how many devices the reason for a clean result names.
const maxReasons = 10

// joinReasons joins the reasons of several devices after a prefix. It returns otherwise if there is none.
func joinReasons(prefix string, reasons []string, otherwise string) string {
	if len(reasons) == 0 {
		return otherwise
	}
	return prefix + strings.Join(fault.Most(reasons, maxReasons, "And %d more"), ". ")
}

// heldResult returns the fault.
func heldResult(held []*device.Usage) (processor.Result, error) {
	var (
		results, devices, patches []string
		documents                 []device.Document
		findings                  []fault.Finding
	)
	for _, c := range held {
		node, some := c.Device.Node(), c.Findings()
		documents, devices, findings = append(documents, c.Document()), append(devices, node), append(findings, some...)
		if c.Left != nil {
			results = append(results, c.Describe())
			continue
		}
		var holders []string
		for _, f := range some {
			if !slices.Contains(holders, f.Holder) {
				holders = append(holders, f.Holder)
			}
		}
		results = append(results, fmt.Sprintf("%s is held by %s", c.Name(), strings.Join(holders, "; and by ")))
		for _, h := range c.HolderInfos {
			if h.Origin.Patch != "" && !slices.Contains(patches, h.Origin.Patch) {
				patches = append(patches, h.Origin.Patch)
			}
		}
	}
	values := map[string]string{keyDiagnoserResult: results[0], keyDiagnoserDevice: devices[0]}
	lists := map[string]any{keyDiagnoserResults: results, keyDiagnoserDevices: devices, keyDiagnoserHolders: documents}
	if len(patches) > 0 {
		values[keyDiagnoserPatch], lists[keyDiagnoserPatches] = patches[0], patches
	}
	err := processor.AddJSON(values, lists)
	return processor.Result{Values: values, Findings: findings}, err
}
