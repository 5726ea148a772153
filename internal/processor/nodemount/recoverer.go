// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package nodemount

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyUnmounted describes the first place, keyUnmountedAll all.
	keyUnmounted    = "recover.kubernetes.node_mount.result"
	keyUnmountedAll = "recover.kubernetes.node_mount.results"
)

// ParamPath has only the mounts at this path be removed. Default: all. It narrows the search, and never adds to it.
const ParamPath = "param.recover.kubernetes.node_mount.path"

// Recoverer is the recoverer nodeMountRecover.
//
// It removes the topmost mounts of a stack, one at a time, as long as each equals the one beneath it. One mount stays. It unmounts a staging path
// that no pod has while the kubelet cannot have the volume staged again. The kernel removes none that is in use.
type Recoverer struct {
	Inspector *nodemount.Inspector
}

// Name is nodeMountRecover.
func (*Recoverer) Name() string { return "nodeMountRecover" }

// Parameters are those that it reads.
func (*Recoverer) Parameters() []string { return []string{ParamPath} }

// Plan looks again, and plans an unmount for each mount that is one too many.
func (h *Recoverer) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	at := r.Values[ParamPath]
	if at != "" && (!path.IsAbs(at) || path.Clean(at) != at) {
		return repair.Part{}, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be an absolute path", ParamPath, at))
	}
	found, actions, refusals, err := h.Inspector.Plan(ctx, at)
	if err != nil {
		return repair.Part{}, err
	}
	if len(actions) == 0 {
		none := "no mount of the kubelet's mount namespace is one too many"
		if len(refusals) > 0 {
			none = processor.JoinReasons(refusals, len(refusals))
		}
		return repair.Part{NotApplicable: none}, nil
	}
	return repair.Part{Findings: found, Actions: actions}, nil
}

// Open implements repair.Family. Each action looks for itself.
func (h *Recoverer) Open() repair.Apply { return h.Apply }

// Apply removes one mount.
func (h *Recoverer) Apply(ctx context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
	if a.Kind != fault.Unmount || a.Mount == nil {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: %s of %q is not known", a.Kind, a.Target))
	}
	err := h.Inspector.Unmount(ctx, *a.Mount)
	switch {
	case err == nil:
		return fault.Applied{Message: "unmounted"}, nil
	case errors.Is(err, mount.ErrNotMounted):
		return fault.AlreadySo("was gone already"), nil
	case errors.Is(err, mount.ErrBusy), errors.Is(err, nodemount.ErrNotRemovable), errors.Is(err, mount.ErrChanged), errors.Is(err, sys.EINVAL):
		return fault.Applied{}, processor.Stalled(fmt.Errorf("nothing was touched: %w", err))
	}
	return fault.Applied{}, err
}

// Verify proves that the mounts are gone: those of a stack but one, and all at a staging path. A fault is healed if no more than that are there.
func (h *Recoverer) Verify(ctx context.Context, _ processor.Request, plan repair.Part) (processor.Result, error) {
	layers, there, err := h.Inspector.Left(ctx, plan.Actions)
	switch {
	case err != nil:
		return processor.Result{}, err
	case len(plan.Actions) == 0:
		return processor.Result{}, processor.Stalled(errors.New("read plan: it removes nothing"))
	case len(there) > 0:
		return processor.Result{}, processor.Stalled(fmt.Errorf("verify unmounts: %d mounts at %q are still there", len(there), there[0].Point))
	}
	stays := map[string]int{} // how many mounts are to stay
	for _, f := range plan.Findings {
		if f.Details.Place != fault.PlaceStaging {
			stays[f.Details.Path] = 1
		}
	}
	removed := map[string]int{}
	for i, a := range plan.Actions {
		if layers[a.Mount.Point] < stays[a.Mount.Point] {
			return processor.Result{}, processor.Stalled(fmt.Errorf("verify unmounts: nothing is mounted at %q any more", a.Mount.Point))
		}
		if !plan.Outcome(i).Already {
			removed[a.Mount.Point]++
		}
	}
	var results []string
	findings := slices.Clone(plan.Findings)
	for i := range findings {
		at := findings[i].Details.Path
		findings[i].Healed = layers[at] == stays[at]
		results = append(results, fmt.Sprintf("unmounted %d mounts at %q; mounts that lie there now: %d", removed[at], at, layers[at]))
	}
	values, err := processor.SentenceValues(keyUnmounted, keyUnmountedAll, results)
	return processor.Result{Values: values, Findings: findings}, err
}
