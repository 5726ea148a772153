// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor/nodemount"
	"kubediag.org/kubediag/internal/processor/orphan"
	"kubediag.org/kubediag/internal/processor/subpath"
	rebind "kubediag.org/kubediag/internal/processor/volume"
)

// repairProgress is how far the repair of a target is.
type repairProgress string

const (
	// progressNotPlanned is the result of a target that should have a plan and has none: the command was interrupted before.
	progressNotPlanned repairProgress = "NotPlanned"
	progressPlanned    repairProgress = "Planned"
	progressRefused    repairProgress = "Refused"
	progressFailed     repairProgress = "Failed"
	progressRepaired   repairProgress = "Repaired" // by the word of the recoverer
	progressGone       repairProgress = "Gone"     // before this command has changed anything
	progressHealed     repairProgress = "Healed"   // a second look has proven it
	// progressNotJudged is that of a fault of an earlier scan which this command could not look for.
	progressNotJudged repairProgress = "NotJudged"
)

// repairTarget is the subject of one plan: faults that one recoverer repairs together.
type repairTarget struct {
	faults    []*scanFault
	operation string
	spec      v1.DiagnosisSpec

	progress repairProgress
	reason   string        // of refused and failed, or the proof
	plan     *v1.Diagnosis // up to its plan
	planned  []fault.Action
	done     *v1.Diagnosis
	needsPod bool // refused, as no source has the spec of its pod
}

// targetsOf groups faults, in their order. Faults that cannot be repaired are a target for each row.
func targetsOf(faults []*scanFault) (all []*repairTarget) {
	type group struct {
		operation, pod, container, volume, device, path string
		place                                           int
	}
	at := map[group]*repairTarget{}
	for _, found := range faults {
		entry := fault.Known().Entry(found.Code)
		g := group{operation: entry.Operation, pod: found.Pod.UID}
		if found.Details.Repair == "" || g.operation == "" {
			g = group{place: found.Place}
		} else {
			switch entry.Scope {
			case fault.ScopeContainer:
				g.container = found.Container
			case fault.ScopeVolume:
				g.volume = found.kubeletVolume()
			case fault.ScopeDevice:
				g.pod, g.device = "", cmp.Or(found.Details.Device, found.Mount.Device)
			case fault.ScopeDirectory: // its pod says which
			case fault.ScopePlace:
				g.pod, g.path = "", found.Details.Path
			}
		}
		target := at[g]
		if target == nil {
			target = &repairTarget{operation: g.operation, progress: progressPlanned}
			at[g], all = target, append(all, target)
			target.spec.Parameters = map[string]string{}
			switch {
			case g.operation == "":
				target.setRefused("kubediag does %s", found.Plan)
			case g.device != "":
				target.spec.Parameters[device.ParamDevice] = g.device
			case g.path != "":
				target.spec.Parameters[nodemount.ParamPath] = g.path
			case entry.Scope == fault.ScopeDirectory:
				target.spec.Parameters[orphan.ParamUID] = found.Pod.UID
			default:
				target.spec.PodReference = &v1.PodReference{Namespace: found.Pod.Namespace, Name: found.Pod.Name, Container: g.container}
			}
			if g.volume != "" {
				target.spec.Parameters[volume.ParamVolume] = g.volume
			}
		}
		target.faults = append(target.faults, found)
	}
	return all
}

func (t *repairTarget) setRefused(format string, args ...any) {
	t.progress, t.reason = progressRefused, fmt.Sprintf(format, args...)
}

// recovery is the repair of several targets, one after the other.
type recovery struct {
	engine  *localEngine
	view    scanView
	targets []*repairTarget
	gone    []*scanFault // that were named, and are gone since the last scan
	next    string       // the command that carries out the plans; empty: there is none
	// hadSpecs is whether the scan that has given the numbers had the specs of pods. again is the command for one row with
	// them.
	hadSpecs bool
	again    func(place int) string
}

// countAt counts the targets that are that far.
func (r *recovery) countAt(p repairProgress) (n int) {
	for _, t := range r.targets {
		if t.progress == p {
			n++
		}
	}
	return n
}

// planAll has each recoverer plan, and changes nothing.
func (r *recovery) planAll(ctx context.Context) {
	for _, t := range r.targets {
		if t.progress == progressPlanned && ctx.Err() == nil {
			if err := r.planTarget(ctx, t); err != nil && ctx.Err() == nil {
				t.progress, t.reason = progressFailed, "it could not be planned: "+err.Error()
			}
		}
	}
}

func (r *recovery) planTarget(ctx context.Context, target *repairTarget) (err error) {
	if ref := target.spec.PodReference; ref != nil {
		if why := r.unknownPodReason(ctx, target); why != "" {
			target.setRefused("%s", why)
			return nil
		}
		if r.engine.pods.runtime == nil { // no source says how containers are later
			wait := subpath.ParamWaitSeconds
			if fault.Known().Entry(target.faults[0].Code).Scope == fault.ScopeVolume {
				wait = rebind.ParamRebindWaitSeconds
			}
			target.spec.Parameters[wait] = "0"
		}
	}
	if target.spec.OperationSet, err = r.engine.singleOperationSet(ctx, target.operation); err != nil {
		return err
	}
	diagnosis, planned, err := r.engine.planDiagnosis(ctx, target.spec, nil)
	if err != nil {
		return err
	}
	target.plan, target.planned = diagnosis, planned
	switch diagnosis.Status.Outcome {
	case v1.OutcomePlanned:
	case v1.OutcomeError:
		target.progress, target.reason = progressFailed, "it could not be planned: "+diagnosisMessage(diagnosis)
	default:
		target.setRefused("%s", diagnosisMessage(diagnosis))
	}
	return nil
}

// unknownPodReason says why the pod of a target cannot be worked on; empty if it can.
func (r *recovery) unknownPodReason(ctx context.Context, t *repairTarget) string {
	found := t.faults[0]
	if found.Pod.Name == "" {
		t.needsPod = true
		return "its pod is not known: neither --pods, the kubelet nor the container runtime knows it" + r.engine.whyUnknown()
	}
	pod, err := r.engine.pods.Pod(ctx, found.Pod.Namespace, found.Pod.Name)
	switch {
	case err != nil:
		t.needsPod = errors.Is(err, kubelet.ErrPodNotFound)
		return "its pod is not known: " + err.Error() + r.engine.whyUnknown()
	case string(pod.UID) != found.Pod.UID:
		t.needsPod = true
		return fmt.Sprintf("the spec that is known of a pod with this name is of UID %s", pod.UID)
	}
	return ""
}

// diagnosisMessage is the last message of a Diagnosis: of its operation, or of its condition.
func diagnosisMessage(diagnosis *v1.Diagnosis) string {
	for _, run := range slices.Backward(diagnosis.Status.Operations) {
		if run.Message != "" {
			return run.Message
		}
	}
	if c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete); c != nil {
		return c.Message
	}
	return diagnosis.Status.Summary
}

// repairAll carries out the plans that were agreed to.
func (r *recovery) repairAll(ctx context.Context, dataRoot string) error {
	root, err := openRepairRoot(dataRoot)
	if err != nil {
		return err
	}
	for _, t := range r.targets {
		if t.progress == progressPlanned && ctx.Err() == nil {
			if err := r.repairTarget(ctx, t, root); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairTarget carries out one plan, if it is still the same. An error is one of the data root.
func (r *recovery) repairTarget(ctx context.Context, target *repairTarget, root *repairRoot) error {
	underway, err := agentRepairs(root.dir)
	if err != nil {
		return err
	}
	if why := agentRefusal(underway, func(u pipeline.Repair) bool { return overlapsPlan(u.Actions, target.planned) }); why != "" {
		target.setRefused("%s", why)
		return nil
	}
	diagnosis, err := r.engine.repairDiagnosis(ctx, target.spec, target.plan.Status.Plan.Hash, root, nil)
	target.done = diagnosis
	switch {
	case ctx.Err() != nil:
		target.progress, target.reason = progressFailed, "it was interrupted; a repair that has begun can be repeated"
	case err != nil:
		target.progress, target.reason = progressFailed, err.Error()
	case changedNothing(diagnosis) && (diagnosis.Status.Outcome == v1.OutcomeHealed ||
		diagnosis.Status.Outcome == v1.OutcomeNoFault || diagnosisReason(diagnosis) == v1.ReasonPlanChanged):
		target.progress, target.reason = progressGone, diagnosisMessage(diagnosis)
	case diagnosis.Status.Phase == v1.DiagnosisSucceeded:
		target.progress = progressRepaired
	default:
		target.progress, target.reason = progressFailed, diagnosisMessage(diagnosis)
	}
	return nil
}

// changedNothing reports whether a Diagnosis has changed nothing itself.
func changedNothing(d *v1.Diagnosis) bool {
	return !slices.ContainsFunc(d.Status.Operations, func(run v1.OperationRun) bool {
		return slices.ContainsFunc(run.Actions, func(a v1.Action) bool { return a.Phase != v1.ActionPlanned && !a.Already })
	})
}

func diagnosisReason(d *v1.Diagnosis) string {
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c != nil {
		return c.Reason
	}
	return ""
}

// verifyByScan looks again. Nothing is called healed that this look still finds. If no fault is left, the numbers of the last
// scan go.
func (r *recovery) verifyByScan(ctx context.Context, o scanOptions, at scanSite) error {
	if r.countAt(progressRepaired)+r.countAt(progressGone)+r.countAt(progressFailed) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := o.scanSite(ctx, at)
	if err != nil {
		return fmt.Errorf("look again: %w", err)
	}
	if after.Looked.Gaps.Interrupted {
		return errors.Join(ctx.Err(), unseenError(after.Looked.Gaps.NotLookedAt))
	}
	if len(after.Faults) == 0 {
		saveLastScan(after, o.keptFlags())
	}
	present := after.byKey()
	for _, target := range r.targets {
		there, unjudged := false, ""
		for _, f := range target.faults {
			there = there || present[f.key()] != nil
			unjudged = cmp.Or(unjudged, after.whyUnjudged(f, r.hadSpecs))
		}
		target.setScanned(there, unjudged)
	}
	return nil
}

// setScanned sets the result after a second scan. there is whether the scan finds a fault of the target again, and unjudged
// why it could not look for one.
func (t *repairTarget) setScanned(there bool, unjudged string) {
	unknown := strings.TrimPrefix(t.reason+"; a second scan cannot say whether it is gone, as "+unjudged, "; ")
	switch t.progress {
	case progressRepaired:
		switch {
		case there:
			t.progress, t.reason = progressFailed, "it was repaired, but a second scan finds it again"
		case unjudged != "":
			t.reason = unknown
		default: // the proof is the second scan, and the containers that have started
			t.progress, t.reason = progressHealed, "a second scan no longer finds it"
			results := t.done.Status.OperationResults
			if seconds := cmp.Or(results[subpath.KeyRecoverRunningAfter], results[rebind.KeyRebindRunningAfter]); seconds != "" {
				t.reason += "; its containers have started after " + seconds + " s"
			} else if slices.ContainsFunc(t.done.Status.Faults, func(f v1.Fault) bool { return f.State == v1.FaultPresent }) {
				t.reason += "; whether its containers start was not seen"
			}
		}
	case progressGone:
		switch {
		case there && diagnosisReason(t.done) == v1.ReasonPlanChanged:
			t.progress = progressRefused
		case there:
			t.progress, t.reason = progressFailed, "a second scan still finds it: "+t.reason
		case unjudged != "":
			t.progress, t.reason = progressNotJudged, unjudged
		default:
			t.reason = "it was gone before this command has changed anything"
		}
	case progressFailed:
		switch {
		case there:
		case unjudged != "":
			t.reason = unknown
		case t.done != nil && !changedNothing(t.done):
			t.progress, t.reason = progressHealed, "a second scan no longer finds it, but: "+t.reason
		}
	}
}

// finalError is how the verb ends. Only those who have named rows are refused something: else faults are just left.
func (r *recovery) finalError(err error, named bool) error {
	refused, ok, unjudged := r.countAt(progressRefused), r.countAt(progressHealed)+r.countAt(progressGone), r.countAt(progressNotJudged)
	switch {
	case err != nil:
		return err
	case unjudged > 0 && unjudged+ok == len(r.targets):
		return errUnseen
	case ok == len(r.targets):
		return nil
	case refused == len(r.targets) && named:
		return fmt.Errorf("%w: nothing was changed", verb.ErrRefused)
	}
	return verb.ErrFaults
}
