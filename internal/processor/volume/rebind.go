// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
)

// Keys of the results.
const (
	// KeyRebindResult describes the first mount that was replaced, KeyResults all.
	KeyRebindResult  = "recover.kubernetes.volume_rebind.result"
	KeyRebindResults = "recover.kubernetes.volume_rebind.results"
	// KeyRebindRefusals says what is still broken and was left alone, and why, as JSON. It is absent if nothing was.
	KeyRebindRefusals = "recover.kubernetes.volume_rebind.refusals"
	// KeyRebindShares are the other pods of the node that have one of the dead file systems, as JSON: nothing of theirs
	// was changed. It is absent if there are none.
	KeyRebindShares = "recover.kubernetes.volume_rebind.shares"
	// KeyRebindRunningAfter is how many seconds after the repair all containers that could not start were seen to have
	// started. It is absent if there was none, or the run did not wait.
	KeyRebindRunningAfter = "recover.kubernetes.volume_rebind.running_after_seconds"
)

// Inspector judges volumes and changes their mounts: a *volume.Inspector.
type Inspector interface {
	Inspect(ctx context.Context, s volume.Selection) (*volume.Survey, error)
	Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string, err error)
	Apply(ctx context.Context, a fault.Action) (fault.Applied, error)
	Verify(ctx context.Context, actions []fault.Action) (volume.Proof, error)
}

// RebindRecoverer is the recoverer volumeRebindRecover.
//
// It repairs the dead volumes of a pod: it replaces every mount of such a volume by the right directory, first on the
// host and then in the running containers. No container restarts, and there is no moment without a mount. Package
// internal/faults/volume finds the broken mounts, and takes the source from the kubelet's own records. Parameters
// narrow that, or permit to abort a connection that hangs; they name no target. Only volumes of the Diagnosis' own pod
// change, and each mount only if that is still the planned one, and still broken.
type RebindRecoverer struct {
	Pods      kubelet.Pods
	Inspector Inspector
	// Runtime is nil if there is none; no start is brought forward then.
	Runtime restart.Runtime
}

// Name is volumeRebindRecover.
func (*RebindRecoverer) Name() string { return "volumeRebindRecover" }

// Parameters are those that it reads.
func (*RebindRecoverer) Parameters() []string {
	return []string{volume.ParamVolume, ParamRebindAbort, ParamRebindBringForward, ParamRebindWaitSeconds}
}

func (h *RebindRecoverer) starter() restart.Restarter {
	return restart.Restarter{Pods: h.Pods, Runtime: h.Runtime}
}

// Bounds of a plan.
const (
	maxActions        = 32
	maxFindings       = 64
	maxRebindEvidence = 8  // sentences of one finding
	maxReasons        = 10 // in one message
)

// Plan looks again, and plans what package volume would do about every broken volume of the pod, and then the removal
// of the runtime's records of containers that never started.
func (h *RebindRecoverer) Plan(ctx context.Context, r processor.Request) (processor.Plan, error) {
	o, err := rebindOptionsOf(r.Values)
	if err != nil {
		return processor.Plan{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err == nil && elsewhere == "" {
		elsewhere = going(pod)
	}
	if err != nil || elsewhere != "" {
		return processor.Plan{NotApplicable: elsewhere}, err
	}
	survey, err := h.Inspector.Inspect(ctx, volume.Selection{PodUID: string(pod.UID), Volume: r.Values[volume.ParamVolume]})
	if err != nil {
		return processor.Plan{}, err
	}
	d := rebindDraft{pod: pod, container: r.Pod.Container}
	for _, v := range d.broken(survey) {
		actions, refusals, err := h.Inspector.Plan(ctx, v, volume.PlanOptions{Abort: o.abort})
		if err != nil {
			return processor.Plan{}, err
		}
		d.add(v, actions)
		d.refusals = append(d.refusals, refusals...)
	}
	if len(d.actions) == 0 {
		return processor.Plan{NotApplicable: d.nothing(survey), Findings: d.left, Gone: d.absences(survey)}, nil
	}
	return h.plan(ctx, &d, o)
}

// going says why nothing is done about a pod that does not run on: the kubelet unmounts its volumes, and only gets in
// the way of one who replaces them.
func going(pod *corev1.Pod) string {
	name := pod.Namespace + "/" + pod.Name
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s is being deleted: its volumes are unmounted, not mended", name)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Sprintf("pod %s has ended (%s): its volumes are unmounted, not mended", name, pod.Status.Phase)
	}
	return ""
}

// rebindDraft is a plan that grows by one volume after another.
type rebindDraft struct {
	pod       *corev1.Pod
	container string // empty: all
	actions   []fault.Action
	refusals  []string
	// healed are the findings that the actions heal, left all others.
	healed, left []fault.Finding
	shares       []fault.Pod
	mounters     []string // containers that mount what is replaced
}

// broken lists the broken volumes that the request is about.
func (d *rebindDraft) broken(s *volume.Survey) []*volume.Health {
	return slices.DeleteFunc(s.Broken(), func(v *volume.Health) bool {
		return v.Pod.UID != string(d.pod.UID) || d.container != "" && !slices.Contains(v.Mounters(d.pod), d.container)
	})
}

// add takes up what would be done about one volume.
func (d *rebindDraft) add(v *volume.Health, actions []fault.Action) {
	var replaced []fault.Mount
	for _, a := range actions {
		switch {
		case a.Pod.UID != string(d.pod.UID):
			d.refuse("the mount at %q is not one of this pod's, but of the pod with UID %q", a.Mount.Point, a.Pod.UID)
		case d.container != "" && a.Container != "" && a.Container != d.container:
			d.refuse("the mount at %q is that of container %q, and container %q was asked for", a.Mount.Point, a.Container, d.container)
		case len(d.actions) == maxActions:
			d.refuse("the mount at %q is left for another run: no more than %d are replaced at once", a.Mount.Point, maxActions)
		default:
			d.actions = append(d.actions, a)
			if a.Kind == fault.Replace {
				replaced = append(replaced, *a.Mount)
			}
		}
	}
	for _, f := range v.Findings() {
		f.Evidence = f.Evidence[:min(len(f.Evidence), maxRebindEvidence)]
		if slices.Contains(replaced, f.Mount) {
			d.healed = append(d.healed, f)
		} else if len(d.left) < maxFindings {
			d.left = append(d.left, f)
		}
	}
	if len(replaced) > 0 {
		d.mounters = append(d.mounters, v.Mounters(d.pod)...)
	}
	for _, pod := range v.SharedWith {
		if !slices.Contains(d.shares, pod) && len(d.shares) < maxShares {
			d.shares = append(d.shares, pod)
		}
	}
}

func (d *rebindDraft) refuse(format string, args ...any) {
	d.refusals = append(d.refusals, fmt.Sprintf(format, args...))
}

// absences lists the faults that no volume of the pod has any more. There is none to list if a volume could not be
// asked.
func (d *rebindDraft) absences(s *volume.Survey) []fault.Absence {
	unasked := slices.ContainsFunc(s.Volumes, func(v *volume.Health) bool { return v.Answer.State == probe.Unasked })
	if unasked || len(s.Coverage.Incomplete) > 0 || len(d.broken(s)) > 0 {
		return nil
	}
	var gone []fault.Absence
	for _, code := range []fault.Code{fault.DeletedVolumeSource, fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle} {
		gone = append(gone, fault.Absence{Code: code, Pod: fault.Pod{Namespace: d.pod.Namespace, Name: d.pod.Name}})
	}
	return gone
}

// nothing says why nothing is done.
func (d *rebindDraft) nothing(s *volume.Survey) string {
	name := d.pod.Namespace + "/" + d.pod.Name
	if len(d.refusals) > 0 {
		return fmt.Sprintf("no volume of pod %s is mended: %s", name, processor.JoinReasons(d.refusals, maxReasons))
	}
	if len(d.left) > 0 {
		return fmt.Sprintf("no volume of pod %s is mended: nothing is known that could be done", name)
	}
	text := fmt.Sprintf("pod %s has no broken volume: %d volumes on file systems that can die were looked at", name, len(s.Volumes))
	if len(s.Coverage.Incomplete) > 0 {
		text += "; not looked at: " + processor.JoinReasons(s.Coverage.Incomplete, maxReasons)
	}
	return text
}

// plan writes the draft down.
func (h *RebindRecoverer) plan(ctx context.Context, d *rebindDraft, o rebindOptions) (processor.Plan, error) {
	plan := processor.Plan{Actions: d.actions, Findings: d.healed}
	m := rebindState{Pending: d.waiting(), Refusals: d.refusals, Left: d.left, Shares: d.shares}
	if o.BringForward {
		plan.Actions = append(plan.Actions, h.starter().Actions(ctx, m.Pending, d.actions[0].Fault)...)
	}
	err := plan.SaveState(m)
	return plan, err
}

// waiting are the containers that could not start because they lacked what is replaced. If an init container is one of
// them, the others cannot start before it; and while another one runs, they have their time.
func (d *rebindDraft) waiting() restart.Pending {
	names := d.mounters
	if d.container != "" {
		names = []string{d.container}
	}
	w := restart.PendingIn(d.pod, names)
	initial := func(a restart.PendingContainer) bool {
		return slices.ContainsFunc(d.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == a.Container })
	}
	if slices.ContainsFunc(w.Containers, initial) {
		w.Containers = slices.DeleteFunc(w.Containers, func(a restart.PendingContainer) bool { return !initial(a) })
		return w
	}
	busy := slices.ContainsFunc(d.pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	w.Containers = slices.DeleteFunc(w.Containers, func(a restart.PendingContainer) bool {
		s, _ := podinfo.ContainerStatus(d.pod, a.Container)
		return busy && s.State.Waiting != nil && s.State.Waiting.Reason == "PodInitializing"
	})
	return w
}
