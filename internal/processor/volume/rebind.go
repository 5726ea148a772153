// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyRebindResult describes the first mount that was replaced, keyRebindResults all.
	keyRebindResult  = "recover.kubernetes.volume_rebind.result"
	keyRebindResults = "recover.kubernetes.volume_rebind.results"
	// keyRebindRefusals names the faults that stay, and why, as JSON. It is absent if nothing was.
	keyRebindRefusals = "recover.kubernetes.volume_rebind.refusals"
	// keyRebindSharedWith are the other pods of the node that have one of the dead file systems, as JSON: nothing of
	// theirs was changed. It is absent if there are none.
	keyRebindSharedWith = "recover.kubernetes.volume_rebind.shares"
	// KeyRebindRunningAfter is how many seconds after the repair all containers that could not start were seen to have
	// started. It is absent if there was none, or the run did not wait.
	KeyRebindRunningAfter = "recover.kubernetes.volume_rebind.running_after_seconds"
)

// Inspector judges volumes and changes their mounts: a *volume.Inspector.
type Inspector interface {
	Inspect(ctx context.Context, s mountstate.Scope) (*volume.Survey, error)
	Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string, err error)
	Open(podUIDs ...string) (apply func(ctx context.Context, a fault.Action) (fault.Applied, error))
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
	return []string{volume.ParamVolume, paramRebindAbort, paramRebindBringForward, ParamRebindWaitSeconds}
}

func (h *RebindRecoverer) restarter() restart.Restarter {
	return restart.Restarter{Pods: h.Pods, Runtime: h.Runtime, RunningAfter: KeyRebindRunningAfter}
}

// Bounds of a plan.
const (
	maxActions        = 32
	maxFindings       = 64
	maxRebindEvidence = 8  // sentences of one finding
	maxReasons        = 10 // in one message
)

// Plan looks again, and plans the repair that package volume has for every broken volume of the pod. Then it plans the
// removal of the runtime's records of containers that never started.
func (h *RebindRecoverer) Plan(ctx context.Context, request processor.Request) (repair.Part, error) {
	options, err := rebindOptionsOf(request.Values)
	if err != nil {
		return repair.Part{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, request)
	if err != nil || elsewhere != "" {
		return repair.Part{NotApplicable: elsewhere}, err
	}
	survey, err := h.Inspector.Inspect(ctx, mountstate.Scope{PodUIDs: []string{string(pod.UID)}, Volume: request.Values[volume.ParamVolume]})
	if err != nil {
		return repair.Part{}, err
	}
	d := rebindDraft{pod: pod, container: request.Pod.Container}
	for _, v := range d.brokenVolumes(survey) {
		actions, refusals, err := h.Inspector.Plan(ctx, v, volume.PlanOptions{Abort: options.abort})
		if err != nil {
			return repair.Part{}, err
		}
		d.addVolume(v, actions)
		d.refusals = append(d.refusals, refusals...)
	}
	if going := notRunningReason(pod); going != "" { // then dead mounts are removed, and none is replaced
		d.actions = slices.DeleteFunc(d.actions, func(a fault.Action) bool { return a.Kind != fault.Unmount })
		d.mounters = nil
		if len(d.actions) == 0 {
			if len(d.refusals) > 0 {
				going += "; " + processor.JoinReasons(d.refusals, maxReasons)
			}
			return repair.Part{NotApplicable: going, Findings: d.leftFindings}, nil
		}
	}
	if len(d.actions) == 0 {
		return repair.Part{NotApplicable: d.nothingReason(survey), Findings: d.leftFindings, Gone: d.absences(survey)}, nil
	}
	plan := repair.Part{Actions: d.actions, Findings: d.healedFindings}
	m := rebindState{Pending: d.pendingContainers(), Refusals: d.refusals, Left: d.leftFindings, SharedWith: d.sharedWith}
	if options.BringForward {
		plan.Actions = append(plan.Actions, h.restarter().Actions(ctx, m.Pending, plan.Actions)...)
	}
	err = plan.SaveState(m)
	return plan, err
}

// notRunningReason says why nothing is done about a pod that does not run on: the kubelet unmounts its volumes, and
// only gets in the way of one who replaces them.
func notRunningReason(pod *corev1.Pod) string {
	name := pod.Namespace + "/" + pod.Name
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s is being deleted: its volumes are unmounted, not repaired", name)
	case podinfo.Ended(pod):
		return fmt.Sprintf("pod %s has ended (%s): its volumes are unmounted, not repaired", name, pod.Status.Phase)
	}
	return ""
}

// rebindDraft is a plan that grows by one volume after another.
type rebindDraft struct {
	pod       *corev1.Pod
	container string // empty: all
	actions   []fault.Action
	refusals  []string
	// healedFindings are the findings that the actions repair, left all others.
	healedFindings, leftFindings []fault.Finding
	sharedWith                   []fault.Pod
	mounters                     []string // containers that have one of the mounts that are replaced
}

// brokenVolumes lists the broken volumes that the request is about.
func (d *rebindDraft) brokenVolumes(s *volume.Survey) []*volume.Health {
	return slices.DeleteFunc(s.Broken(), func(v *volume.Health) bool { return !isMountedIn(v, d.pod, d.container) })
}

// addVolume takes up the plan for one volume.
func (d *rebindDraft) addVolume(health *volume.Health, actions []fault.Action) {
	var replaced []fault.Mount
	for _, action := range actions {
		switch {
		case action.Pod.UID != string(d.pod.UID):
			d.addRefusal("the mount at %q is not one of this pod's, but of the pod with UID %q", action.Mount.Point, action.Pod.UID)
		case d.container != "" && action.Key().Container != "" && action.Key().Container != d.container:
			d.addRefusal("the mount at %q is that of container %q, and container %q was asked for", action.Mount.Point, action.Key().Container, d.container)
		case len(d.actions) == maxActions:
			d.addRefusal("the mount at %q is left for another run: no more than %d are replaced at once", action.Mount.Point, maxActions)
		default:
			d.actions = append(d.actions, action)
			if action.Kind == fault.Replace || action.Kind == fault.Unmount {
				replaced = append(replaced, *action.Mount)
			}
		}
	}
	for _, f := range health.Findings() {
		f.Evidence = f.Evidence[:min(len(f.Evidence), maxRebindEvidence)]
		if slices.Contains(replaced, f.Mount) {
			d.healedFindings = append(d.healedFindings, f)
		} else if len(d.leftFindings) < maxFindings {
			d.leftFindings = append(d.leftFindings, f)
		}
	}
	if len(replaced) > 0 {
		d.mounters = append(d.mounters, health.Evidence.Mounters(d.pod)...)
	}
	for _, pod := range health.Surroundings.SharedWith {
		if !slices.Contains(d.sharedWith, pod) && len(d.sharedWith) < maxSharedWith {
			d.sharedWith = append(d.sharedWith, pod)
		}
	}
}

func (d *rebindDraft) addRefusal(format string, args ...any) {
	d.refusals = append(d.refusals, fmt.Sprintf(format, args...))
}

// absences lists the faults that no volume of the pod has any more. There is none to list if a volume could not be
// asked.
func (d *rebindDraft) absences(s *volume.Survey) []fault.Absence {
	unasked := slices.ContainsFunc(s.Volumes, func(v *volume.Health) bool { return v.Evidence.Answer.State == probe.NotProbed })
	if unasked || len(s.Unknown.Sentences()) > 0 || len(d.brokenVolumes(s)) > 0 {
		return nil
	}
	var gone []fault.Absence
	onlyHere := func(e fault.Entry) bool { return e.Family == fault.FamilyVolume && len(e.Searches) == 1 }
	for _, code := range fault.Known().Codes(onlyHere) {
		gone = append(gone, fault.Absence{Code: code, Pod: fault.Pod{Namespace: d.pod.Namespace, Name: d.pod.Name}})
	}
	return gone
}

// nothingReason says why nothing is done.
func (d *rebindDraft) nothingReason(survey *volume.Survey) string {
	name := d.pod.Namespace + "/" + d.pod.Name
	if len(d.refusals) > 0 {
		return fmt.Sprintf("no volume of pod %s is repaired: %s", name, processor.JoinReasons(d.refusals, maxReasons))
	}
	if len(d.leftFindings) > 0 {
		return fmt.Sprintf("no volume of pod %s is repaired: no repair is known", name)
	}
	text := fmt.Sprintf("pod %s has no broken volume: %d volumes on file systems that can die were looked at", name, len(survey.Volumes))
	if left := survey.Unknown.Sentences(); len(left) > 0 {
		text += "; not looked at: " + processor.JoinReasons(left, maxReasons)
	}
	return text
}

// pendingContainers are the containers that could not start because they lacked one of the mounts that are replaced. If an init container
// is one of them, the others cannot start before it; and while another one runs, they have their time.
func (d *rebindDraft) pendingContainers() restart.Pending {
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

// Parameters. They choose how, never what.
const (
	// paramRebindAbort is "true" or "false" (default): whether the connection of a volume that hangs may be aborted, by
	// which what was written there and not stored is lost for every pod that has the file system.
	paramRebindAbort = "param.recover.kubernetes.volume_rebind.abort"
	// paramRebindBringForward is "true" (default) or "false".
	paramRebindBringForward = "param.recover.kubernetes.volume_rebind.bring_forward"
	// ParamRebindWaitSeconds is for how many seconds, 0 to 3600, the containers are waited for. Default: 120, and never
	// longer than the operation has time.
	ParamRebindWaitSeconds = "param.recover.kubernetes.volume_rebind.wait_seconds"
)

type rebindOptions struct {
	restart.Options
	abort bool
}

// defaultRebindWait is longer than it takes a kubelet of 1.36.3 to look at a pod again, and to start a container. The
// former takes 90 s at most if its syncFrequency is a minute.
const defaultRebindWait = 2 * time.Minute

func rebindOptionsOf(values map[string]string) (rebindOptions, error) {
	abort, err := processor.ParseBool(values, paramRebindAbort, false)
	if err != nil {
		return rebindOptions{}, err
	}
	o, err := restart.Keys{BringForward: paramRebindBringForward, WaitSeconds: ParamRebindWaitSeconds, Wait: defaultRebindWait}.Options(values)
	return rebindOptions{Options: o, abort: abort}, err
}

// Open implements repair.Family. The actions share one look at the pod's volumes, and each is judged again.
func (h *RebindRecoverer) Open() repair.Apply {
	apply := h.Inspector.Open()
	return func(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
		return h.apply(ctx, r, a, apply)
	}
}

// apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *RebindRecoverer) apply(ctx context.Context, r processor.Request, action fault.Action,
	onVolume func(context.Context, fault.Action) (fault.Applied, error)) (fault.Applied, error) {
	options, err := rebindOptionsOf(r.Values)
	if err != nil {
		return fault.Applied{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err != nil {
		return fault.Applied{}, err
	}
	if elsewhere == "" {
		if action.Kind == fault.RemoveContainerRecord {
			return fault.Applied{}, nil
		}
		if action.Kind != fault.Unmount { // a dead mount may go with its pod
			elsewhere = notRunningReason(pod)
		}
	}
	if elsewhere != "" {
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	switch {
	case action.Kind != fault.Abort && action.Kind != fault.Replace && action.Kind != fault.Unmount:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
	case action.Kind == fault.Abort && !options.abort:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("abort connection of %q: parameter %s does not ask for it", action.Target, paramRebindAbort))
	case action.Mount == nil:
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	done, err := onVolume(ctx, actionOfPod(action, string(pod.UID))) // its mount must be a broken one of a volume of the pod as it is now
	if !errors.Is(err, volume.ErrRefused) {
		return done, err
	}
	err = fmt.Errorf("nothing was touched: %w", err)
	if errors.Is(err, volume.ErrHung) || errors.Is(err, volume.ErrInUse) {
		return done, &processor.WaitingError{Err: err, After: refusalRetry}
	}
	return done, processor.Stalled(err)
}

// refusalRetry is the wait after a mount did not answer, or was in use.
const refusalRetry = 5 * time.Second

// actionOfPod is the action about a volume of that pod, whichever pod it was planned for.
func actionOfPod(a fault.Action, podUID string) fault.Action {
	a.Pod = &fault.Pod{UID: podUID}
	return a
}
