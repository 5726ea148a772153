// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/repair"
)

// rebindState has the facts of the time of the plan that Verify needs.
type rebindState struct {
	restart.Pending
	// Refusals are about volumes that were left alone, and Left are the faults that stay with them.
	Refusals   []string        `json:"refusals,omitempty"`
	Left       []fault.Finding `json:"left,omitempty"`
	SharedWith []fault.Pod     `json:"shares,omitempty"`
}

func loadRebindState(p repair.Part) (rebindState, error) {
	var m rebindState
	err := p.LoadState(&m)
	if err == nil && m.PodUID == "" {
		err = processor.Stalled(errors.New("decode notes of plan: no pod is noted"))
	}
	return m, err
}

// Verify proves that the replaced mounts are gone and that the volume is there now. The containers that could not
// start are to be waited for. The faults of those that are not are not called healed.
func (h *RebindRecoverer) Verify(ctx context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	options, err := rebindOptionsOf(request.Values)
	if err != nil {
		return processor.Result{}, err
	}
	state, err := loadRebindState(plan)
	if err != nil {
		return processor.Result{}, err
	}
	if _, err := h.restarter().SamePod(ctx, request, state.PodUID); err != nil {
		return processor.Result{}, err
	}
	results, err := h.verifyPlaces(ctx, plan, state)
	if err != nil {
		return processor.Result{}, err
	}
	values, lists := map[string]string{keyRebindResult: results[0]}, map[string]any{keyRebindResults: results}
	if len(state.Refusals) > 0 {
		values[keyRebindResult] += "; left alone: " + processor.JoinReasons(state.Refusals, maxReasons)
		lists[keyRebindRefusals] = state.Refusals
	}
	if len(state.SharedWith) > 0 {
		lists[keyRebindSharedWith] = state.SharedWith
	}
	if err := processor.AddJSON(values, lists); err != nil {
		return processor.Result{}, err
	}
	proven := processor.Result{Values: values, Findings: plan.Findings}
	return h.restarter().Conclude(request, state.Pending, options.Options, proven, state.Left...), nil
}

// verifyPlaces looks at the places of the plan, and says in a sentence each the deed and the state now.
func (h *RebindRecoverer) verifyPlaces(ctx context.Context, p repair.Part, state rebindState) ([]string, error) {
	var results []string
	var replaced []fault.Action
	var did []string // about each
	for i, action := range p.Actions {
		done := p.Outcome(i)
		switch {
		case action.Mount == nil:
		case action.Kind == fault.Abort && done.Already:
			results = append(results, fmt.Sprintf("did not abort the connection of %q: %s", action.Target, done.Message))
		case action.Kind == fault.Abort:
			results = append(results, fmt.Sprintf("aborted the connection of %q, which did not answer: every mount of it is dead now, until its "+
				"driver mounts the volume again", action.Target))
		case action.Kind == fault.Replace, action.Kind == fault.Unmount:
			replaced, did = append(replaced, actionOfPod(action, state.PodUID)), append(did, describeReplaced(action, done))
		}
	}
	if len(replaced) == 0 && len(results) == 0 {
		return nil, processor.Stalled(errors.New("read plan: it replaces nothing"))
	}
	if len(replaced) == 0 {
		return results, nil
	}
	proof, err := h.Inspector.Verify(ctx, replaced)
	if err != nil {
		return nil, err
	}
	if !proof.Healed {
		return nil, processor.Stalled(fmt.Errorf("verify volumes of the pod: not all of it is repaired: %s",
			processor.JoinReasons(proof.NotHealed, maxReasons)))
	}
	for i := range did {
		if i < len(proof.Evidence) {
			did[i] += ": " + proof.Evidence[i]
		}
	}
	return append(results, did...), nil
}

// describeReplaced names the mount that an action has replaced or removed, if it has.
func describeReplaced(action fault.Action, done fault.Applied) string {
	text := fmt.Sprintf("replaced the mount at %q", action.Mount.Point)
	switch {
	case action.Kind == fault.Unmount && done.Already:
		text = fmt.Sprintf("found the mount at %q unmounted", action.Mount.Point)
	case action.Kind == fault.Unmount:
		text = fmt.Sprintf("unmounted the mount at %q", action.Mount.Point)
	case done.Already:
		text = fmt.Sprintf("found nothing left to replace of the mount at %q", action.Mount.Point)
	}
	if name := action.Key().Container; name != "" {
		text += fmt.Sprintf(" of container %q", name)
	}
	return text + fmt.Sprintf(", which was broken by %s", action.Key().Code)
}

// UnrepairableJudge says which volumes are broken and beyond the repairs of this package.
type UnrepairableJudge struct {
	Inspector Inspector
}

// Unrepairable returns the faults of a pod's volumes for which nothing would be planned, and which a new pod would not
// have, and in reasons why. Without findings, reasons say why there is none. A copy that another pod has is none of this pod's faults.
func (j *UnrepairableJudge) Unrepairable(ctx context.Context, podUID string) (findings []fault.Finding, reasons []string, err error) {
	if podUID == "" {
		return nil, nil, fmt.Errorf("judge volumes: no pod is named")
	}
	survey, err := j.Inspector.Inspect(ctx, mountstate.Scope{PodUIDs: []string{podUID}})
	if err != nil {
		return nil, nil, err
	}
	repairable := []string{fmt.Sprintf("%d volumes on file systems that can die were looked at", len(survey.Volumes))}
	for _, health := range survey.Broken() {
		own := slices.DeleteFunc(health.Findings(), func(f fault.Finding) bool { return health.Evidence.Pod.UID != podUID || f.Pod.UID != podUID })
		if len(own) == 0 {
			continue
		}
		actions, refusals, err := j.Inspector.Plan(ctx, health, volume.PlanOptions{})
		switch {
		case err != nil:
			return nil, nil, err
		case len(actions) > 0:
			repairable = append(repairable, fmt.Sprintf("volume %q can be repaired where it is", health.Evidence.Name))
		default:
			helped := slices.DeleteFunc(own, func(f fault.Finding) bool { return !fault.Known().EvictionHelps(f) })
			if len(helped) == 0 {
				repairable = append(repairable, fmt.Sprintf("a new pod does not repair volume %q: %s", health.Evidence.Name,
					processor.JoinReasons(refusals, maxReasons)))
				continue
			}
			findings, reasons = append(findings, helped...), append(reasons, refusals...)
		}
	}
	if len(findings) == 0 {
		reasons = append(repairable, survey.Unknown.Sentences()...)
	}
	return findings, reasons, nil
}
