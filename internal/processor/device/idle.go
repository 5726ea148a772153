// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyIdleResult describes the first device that was unmapped, keyIdleResults all.
	keyIdleResult  = "recover.system.idle_device.result"
	keyIdleResults = "recover.system.idle_device.results"
)

// IdleRecoverer is the recoverer idleDeviceRecover. It remembers its observations, so one serves for all calls. With a
// File it goes on where the last one has ended, until the node boots again.
//
// It unmaps krbd devices, one by one, that have been idle for a while and that nothing holds. A device is idle if its
// counters have not changed since they were first seen with these values, long enough ago; a device that is seen for
// the first time is not idle. It unmaps through krbd's own interface, which refuses while the device is open, and never
// by force. It rests on the kernel's Documentation/ABI/testing/sysfs-bus-rbd and Documentation/block/stat.rst.
type IdleRecoverer struct {
	Inspector *device.Inspector
	// File keeps the observations. Empty: it is forgotten when the process ends. One process at a time may use a file.
	File string
	// Now is the time since the boot; nil is sys.SinceBoot.
	Now func() time.Duration

	mu      sync.Mutex
	samples map[fault.Device]idleSample // nil: File was not read yet
}

// Name is idleDeviceRecover.
func (*IdleRecoverer) Name() string { return "idleDeviceRecover" }

// Parameters are those that it reads.
func (*IdleRecoverer) Parameters() []string {
	return []string{paramMinimumIdleSeconds, paramLimit}
}

// Plan looks at every krbd device, and plans to unmap those that have been idle for longest, up to the limit.
func (h *IdleRecoverer) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	options, err := idleOptionsOf(r.Values)
	if err != nil {
		return repair.Part{}, err
	}
	candidates, kept, err := h.findIdle(ctx, options)
	if err != nil {
		return repair.Part{}, err
	}
	if len(candidates) == 0 {
		return repair.Part{NotApplicable: joinReasons("", kept, "no krbd device is mapped on this node")}, nil
	}
	plan := repair.Part{}
	for _, c := range candidates[:min(len(candidates), options.limit)] {
		ref := device.Reference(c.device)
		plan.Actions = append(plan.Actions, fault.Action{
			Kind: fault.Detach, Target: device.DescribeTarget(c.device), Device: &ref, Loss: "nothing: the image is not touched", Lossless: true,
			Safety: fmt.Sprintf("the kernel lets it be opened exclusively, no mount of it and no other holder was found, its counters have not "+
				"changed for %d seconds; it is not forced: krbd refuses while it is open", int(c.idle.Seconds())),
		})
	}
	return plan, nil
}

// idleCandidate is a device that may be unmapped.
type idleCandidate struct {
	device blockdev.Device
	idle   time.Duration
}

// findIdle looks at all devices. kept says of the others why they stay.
func (h *IdleRecoverer) findIdle(ctx context.Context, options idleOptions) (candidates []idleCandidate, kept []string, err error) {
	devices, err := h.Inspector.Finder.Sys.All()
	if err != nil {
		return nil, nil, err
	}
	devices = slices.DeleteFunc(devices, func(d blockdev.Device) bool { return d.Kind != blockdev.KRBD || d.Parent != "" })
	if err := h.readFile(devices); err != nil {
		return nil, nil, err
	}
	for _, d := range devices {
		idle, why, err := h.idleDuration(d)
		if err == nil && why == "" && idle < options.minimum {
			why = fmt.Sprintf("it has been seen idle for %d seconds only, and %d are asked for", int(idle.Seconds()), int(options.minimum.Seconds()))
		}
		if err == nil && why == "" {
			why, err = h.heldBy(ctx, d)
		}
		switch {
		case device.IsGone(err):
		case err != nil:
			return nil, nil, err
		case why != "":
			kept = append(kept, fmt.Sprintf("device %s stays: %s", d.Node(), why))
		default:
			candidates = append(candidates, idleCandidate{d, idle})
		}
	}
	if err := h.writeFile(); err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(candidates, func(a, b idleCandidate) int { return cmp.Compare(b.idle, a.idle) })
	return candidates, kept, nil
}

// heldBy names the holder of a device; empty: there is none.
func (h *IdleRecoverer) heldBy(ctx context.Context, d blockdev.Device) (string, error) {
	point, err := h.Inspector.NodeUsed(ctx, d)
	if err != nil || point != "" {
		return fmt.Sprintf("its node is bound at %q, as for a volume that a pod gets as a device", point), err
	}
	c, err := h.Inspector.InspectWithProcesses(ctx, d)
	if err != nil {
		return "", err
	}
	if !c.Unused() {
		return c.Describe(), nil
	}
	return "", nil
}

// idleDuration says for how long the counters of a device have been the same.
func (h *IdleRecoverer) idleDuration(d blockdev.Device) (lasted time.Duration, why string, err error) {
	if !d.Known() {
		return 0, "it cannot be distinguished from an image that has replaced it", nil
	}
	now, err := h.Inspector.Finder.Sys.Stat(d)
	if errors.Is(err, blockdev.ErrNotCounted) {
		return 0, "its idle time is unknown: " + err.Error(), nil
	}
	if err != nil {
		return 0, "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key := device.Reference(d)
	before, known := h.samples[key]
	if !known || before.Activity != now || now.InFlight > 0 {
		h.samples[key] = idleSample{key, now, h.sinceBoot()}
		return 0, "", nil
	}
	return h.sinceBoot() - before.Since, "", nil
}

func (h *IdleRecoverer) sinceBoot() time.Duration {
	if h.Now != nil {
		return h.Now()
	}
	return sys.SinceBoot()
}

// Open implements repair.Family. Each action looks for itself.
func (h *IdleRecoverer) Open() repair.Apply { return h.Apply }

// Apply unmaps one device, if it is the one that was planned, and is unused still. It refuses a device that is no krbd device, has its node bound, or
// has been used since it was planned for. The counters of that time are unknown if the node's agent has started since and has not swept yet: then it is
// enough that nothing holds it.
func (h *IdleRecoverer) Apply(ctx context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
	if a.Kind != fault.Detach {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", a.Kind))
	}
	gone, err := h.Inspector.Detach(ctx, a.Device, func(d blockdev.Device) error {
		if d.Kind != blockdev.KRBD || d.Parent != "" {
			return fmt.Errorf("%w: %s is no krbd device", device.ErrNotRemovable, d.Node())
		}
		point, err := h.Inspector.NodeUsed(ctx, d)
		if err == nil && point != "" {
			err = fmt.Errorf("%w: its node is bound at %q", device.ErrNotRemovable, point)
		}
		if err != nil {
			return err
		}
		now, err := h.Inspector.Finder.Sys.Stat(d)
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if before, known := h.samples[device.Reference(d)]; known && (before.Activity != now || now.InFlight > 0) {
			return fmt.Errorf("%w: %s was used since it was planned for", device.ErrNotRemovable, d.Node())
		}
		return nil
	})
	return detachOutcome("unmapped", gone, err)
}

// Verify proves that every device of the plan is gone.
func (h *IdleRecoverer) Verify(_ context.Context, _ processor.Request, plan repair.Part) (processor.Result, error) {
	var results []string
	for i, action := range plan.Actions {
		there, err := h.Inspector.There(action.Device)
		if err == nil && there {
			err = fmt.Errorf("verify unmap of %s: it is still there", action.Target)
		}
		if err != nil {
			return processor.Result{}, processor.Stalled(err)
		}
		if done := plan.Outcome(i); done.Already {
			results = append(results, fmt.Sprintf("did not unmap idle device %s: %s", action.Target, done.Message))
			continue
		}
		results = append(results, "unmapped idle device "+action.Target)
	}
	if len(results) == 0 {
		return processor.Result{}, processor.Stalled(errors.New("read plan: it unmaps nothing"))
	}
	values, err := processor.SentenceValues(keyIdleResult, keyIdleResults, results)
	return processor.Result{Values: values}, err
}
