// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/processor/orphan"
	"kubediag.org/kubediag/internal/processor/subpath"
	rebind "kubediag.org/kubediag/internal/processor/volume"
)

// progress is how far the repair of a target is.
type progress string

const (
	// notPlanned is told of a target that is planned and has no plan: the command was interrupted before.
	notPlanned progress = "NotPlanned"
	planned    progress = "Planned"
	refusal    progress = "Refused"
	failed     progress = "Failed"
	repaired   progress = "Repaired" // by the word of the recoverer
	gone       progress = "Gone"     // before this command has changed anything
	healed     progress = "Healed"   // a second look has proven it
)

// target is what one plan is made for: faults that one recoverer repairs together.
type target struct {
	faults    []*scanFault
	operation string
	spec      v1.DiagnosisSpec

	progress progress
	why      string        // of refused and failed, or what was seen
	plan     *v1.Diagnosis // up to its plan
	done     *v1.Diagnosis
}

// recoverers are the Operations of those that repair with nothing lost.
var recoverers = map[fault.Code]string{
	fault.StaleSubPath:        "subpath-remount-recover",
	fault.DeletedVolumeSource: "volume-rebind-recover",
	fault.DisconnectedFUSE:    "volume-rebind-recover",
	fault.StaleFileHandle:     "volume-rebind-recover",
	fault.HungMount:           "volume-rebind-recover",
	fault.HeldDevice:          "held-device-recover",
	fault.OrphanedPodVolumes:  "orphaned-pod-recover",
}

// targetsOf groups faults, in their order. Faults that cannot be repaired are a target for each row.
func targetsOf(faults []*scanFault) (all []*target) {
	type group struct {
		operation, pod, container, volume, device string
		place                                     int
	}
	at := map[group]*target{}
	for _, f := range faults {
		g := group{operation: recoverers[f.Code], pod: f.Pod.UID}
		switch {
		case f.Details.Repair == "" || g.operation == "":
			g = group{place: f.Place}
		case f.Code == fault.StaleSubPath:
			g.container = f.Container
		case f.Code == fault.HeldDevice:
			g.pod, g.device = "", cmp.Or(f.Details.Device, f.Mount.Device)
		case f.Code != fault.OrphanedPodVolumes:
			g.volume = f.Volume
		}
		t := at[g]
		if t == nil {
			t = &target{operation: g.operation, progress: planned}
			at[g], all = t, append(all, t)
			t.spec.Parameters = map[string]string{}
			switch {
			case g.operation == "":
				t.refuse("kubediag does %s", f.Plan)
			case g.device != "":
				t.spec.Parameters[device.ParamDevice] = g.device
			case f.Code == fault.OrphanedPodVolumes:
				t.spec.Parameters[orphan.ParamUID] = f.Pod.UID
			default:
				t.spec.PodReference = &v1.PodReference{Namespace: f.Pod.Namespace, Name: f.Pod.Name, Container: g.container}
			}
			if g.volume != "" {
				t.spec.Parameters[volume.ParamVolume] = g.volume
			}
		}
		t.faults = append(t.faults, f)
	}
	return all
}

func (t *target) refuse(format string, args ...any) {
	t.progress, t.why = refusal, fmt.Sprintf(format, args...)
}

// recovery is the repair of several targets, one after the other.
type recovery struct {
	engine  *engine
	view    recoverView
	targets []*target
	gone    []*scanFault // that were named, and are gone since the last scan
	next    string       // the command that carries out the plans; empty: there is none
}

// left counts the targets that are that far.
func (r *recovery) left(p progress) (n int) {
	for _, t := range r.targets {
		if t.progress == p {
			n++
		}
	}
	return n
}

// plan has each recoverer plan, and changes nothing.
func (r *recovery) plan(ctx context.Context) {
	for _, t := range r.targets {
		if t.progress == planned && ctx.Err() == nil {
			if err := r.planOne(ctx, t); err != nil && ctx.Err() == nil {
				t.progress, t.why = failed, "it could not be planned: "+err.Error()
			}
		}
	}
}

func (r *recovery) planOne(ctx context.Context, t *target) (err error) {
	if ref := t.spec.PodReference; ref != nil {
		if why := r.unknownPod(ctx, t); why != "" {
			t.refuse("%s", why)
			return nil
		}
		if r.engine.pods.runtime == nil { // no source says how containers are later
			t.spec.Parameters[subpath.ParamWaitSeconds] = "0"
			if t.operation == recoverers[fault.DisconnectedFUSE] {
				t.spec.Parameters[rebind.ParamRebindWaitSeconds] = "0"
				delete(t.spec.Parameters, subpath.ParamWaitSeconds)
			}
		}
	}
	if t.spec.OperationSet, err = r.engine.only(ctx, t.operation); err != nil {
		return err
	}
	d, err := r.engine.plan(ctx, t.spec, nil)
	if err != nil {
		return err
	}
	t.plan = d
	switch d.Status.Outcome {
	case v1.OutcomePlanned:
	case v1.OutcomeError:
		t.progress, t.why = failed, "it could not be planned: "+messageOf(d)
	default:
		t.refuse("%s", messageOf(d))
	}
	return nil
}

// unknownPod says why the pod of a target cannot be worked on; empty if it can.
func (r *recovery) unknownPod(ctx context.Context, t *target) string {
	f := t.faults[0]
	if f.Pod.Name == "" {
		return "its pod is not known: neither --pods, the kubelet nor the container runtime knows it" + r.engine.whyUnknown()
	}
	pod, err := r.engine.pods.Pod(ctx, f.Pod.Namespace, f.Pod.Name)
	switch {
	case err != nil:
		return "its pod is not known: " + err.Error() + r.engine.whyUnknown()
	case string(pod.UID) != f.Pod.UID:
		return fmt.Sprintf("the pod with this name has UID %s now", pod.UID)
	}
	return ""
}

// messageOf is what a Diagnosis says at its end: its operation, or its condition.
func messageOf(d *v1.Diagnosis) string {
	for _, run := range slices.Backward(d.Status.Operations) {
		if run.Message != "" {
			return run.Message
		}
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c != nil {
		return c.Message
	}
	return d.Status.Summary
}

// repair carries out the plans that were agreed to.
func (r *recovery) repair(ctx context.Context, dataRoot string) error {
	root, err := openRepairRoot(dataRoot)
	if err != nil {
		return err
	}
	for _, t := range r.targets {
		if t.progress == planned && ctx.Err() == nil {
			if err := r.repairOne(ctx, t, root); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairOne carries out one plan, if it is still the same. An error is one of the data root.
func (r *recovery) repairOne(ctx context.Context, t *target, root *repairRoot) error {
	underway, err := agentRepairs(root.dir)
	if err != nil {
		return err
	}
	for _, u := range underway {
		if concerns(u, t.faults) {
			t.refuse("an agent of this node works on it: the Diagnosis with UID %s", u.UID)
			return nil
		}
	}
	d, err := r.engine.repair(ctx, t.spec, t.plan.Status.Plan.Hash, root, nil)
	t.done = d
	switch {
	case ctx.Err() != nil:
		t.progress, t.why = failed, "it was interrupted; a repair that has begun can be repeated"
	case err != nil:
		t.progress, t.why = failed, err.Error()
	case untouched(d) && (d.Status.Outcome == v1.OutcomeHealed || d.Status.Outcome == v1.OutcomeNoFault || reasonOf(d) == v1.ReasonPlanChanged):
		t.progress, t.why = gone, messageOf(d)
	case d.Status.Phase == v1.DiagnosisSucceeded:
		t.progress = repaired
	default:
		t.progress, t.why = failed, messageOf(d)
	}
	return nil
}

// untouched reports whether a Diagnosis has changed nothing itself.
func untouched(d *v1.Diagnosis) bool {
	return !slices.ContainsFunc(d.Status.Operations, func(run v1.OperationRun) bool {
		return slices.ContainsFunc(run.Actions, func(a v1.Action) bool { return a.Phase != v1.ActionPlanned && !a.Already })
	})
}

func reasonOf(d *v1.Diagnosis) string {
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c != nil {
		return c.Reason
	}
	return ""
}

// prove looks again. Nothing is called healed that this look still finds.
func (r *recovery) prove(ctx context.Context, look func(context.Context) (*scanReport, error)) error {
	if r.left(repaired)+r.left(gone)+r.left(failed) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := look(ctx)
	if err != nil {
		return fmt.Errorf("look again: %w", err)
	}
	if after.Looked.Interrupted {
		return errors.Join(ctx.Err(), unseen(after.Looked.NotLookedAt))
	}
	present := map[faultSpot]bool{}
	for i := range after.Faults {
		present[after.Faults[i].spot()] = true
	}
	for _, t := range r.targets {
		there := slices.ContainsFunc(t.faults, func(f *scanFault) bool { return present[f.spot()] })
		switch {
		case t.progress == failed && !there && t.done != nil && !untouched(t.done):
			t.progress, t.why = healed, "a second scan does not see it any more, but: "+t.why
		case t.progress == repaired && there:
			t.progress, t.why = failed, "it was repaired, and a second scan sees it again"
		case t.progress == gone && there && reasonOf(t.done) == v1.ReasonPlanChanged:
			t.refuse("%s", t.why)
		case t.progress == gone && there:
			t.progress, t.why = failed, "a second scan still sees it: "+t.why
		case t.progress == repaired:
			t.progress, t.why = healed, t.proof()
		case t.progress == gone:
			t.why = "it was gone before this command has changed anything"
		}
	}
	return nil
}

// proof is what was seen after a repair.
func (t *target) proof() string {
	text := "a second scan does not see it any more"
	for _, key := range []string{subpath.KeyRecoverRunningAfter, rebind.KeyRebindRunningAfter} {
		if seconds := t.done.Status.OperationResults[key]; seconds != "" {
			return text + "; its containers have started after " + seconds + " s"
		}
	}
	if slices.ContainsFunc(t.done.Status.Faults, func(f v1.Fault) bool { return f.State == v1.FaultPresent }) {
		text += "; whether its containers start was not seen"
	}
	return text
}

// end is how the verb ends. Only those who have named rows are refused something: else faults are just left.
func (r *recovery) end(err error, named bool) error {
	switch refused, ok := r.left(refusal), r.left(healed)+r.left(gone); {
	case err != nil:
		return err
	case ok == len(r.targets):
		return nil
	case refused == len(r.targets) && named:
		return fmt.Errorf("%w: nothing was changed", verb.ErrRefused)
	}
	return verb.ErrFaults
}
