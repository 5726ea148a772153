// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/repair"
)

// KeyEvictResult names the pod that was evicted, and its state since.
const KeyEvictResult = "recover.kubernetes.pod_evict.result"

// Judge knows the volumes of pods.
type Judge interface {
	// Unrepairable returns the faults of a pod's volumes that cannot be repaired on this node, each with the reason why
	// in reasons. Without findings, reasons say why there is none.
	Unrepairable(ctx context.Context, podUID string) (findings []fault.Finding, reasons []string, err error)
}

// EvictRecoverer is the recoverer podEvictRecover.
//
// It is the last resort for a pod whose volume cannot be repaired on its node: it asks the API server to evict the pod,
// so that its controller makes another. It evicts only the pod of the Diagnosis, by name and UID, and only while a
// judge finds such a volume, and only if a parameter of the Diagnosis allows it. PodDisruptionBudgets hold: it waits out a refusal, and deletes no pod. It leaves pods
// alone that no controller would make again. The engine evicts it, by the Eviction API.
type EvictRecoverer struct {
	Pods    kubelet.Pods
	Kubelet kubelet.Locator
	Judge   Judge
	// Allowed is whether evictions are allowed, which is not the default.
	Allowed bool
}

// Name is podEvictRecover.
func (*EvictRecoverer) Name() string { return "podEvictRecover" }

// Parameters are those that it reads.
func (*EvictRecoverer) Parameters() []string {
	return []string{ParamEvictAllowed, paramEvictDaemonSet, ParamEvictWaitSeconds}
}

// evictionNotAsked says how a Diagnosis allows it.
const evictionNotAsked = "the Diagnosis does not allow that: to allow it, set its parameter " + ParamEvictAllowed + ` to "true", as ` +
	"kubectl kubediag run --evict does; this takes the right to create pods/eviction of the pod"

// Plan looks again, and plans one eviction if that is allowed, needed, and does no more harm than it has to.
func (h *EvictRecoverer) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	options, err := evictOptionsOf(r.Values)
	if err != nil {
		return repair.Part{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err != nil || elsewhere != "" {
		return repair.Part{NotApplicable: elsewhere}, err
	}
	findings, reasons, err := h.Judge.Unrepairable(ctx, string(pod.UID))
	if err != nil {
		return repair.Part{}, err
	}
	if len(findings) == 0 {
		return repair.Part{NotApplicable: nothingToEvict(pod, reasons)}, nil
	}
	if why := h.reasonToKeep(pod, options); why != "" {
		why = fmt.Sprintf("pod %s has a volume that cannot be repaired here, and is not evicted: %s", evictedName(pod), why)
		return repair.Part{Findings: findings, NotApplicable: why}, nil
	}
	evicted, served := podinfo.PodOf(pod), make([]fault.Key, len(findings))
	for i, f := range findings {
		served[i] = f.Key()
	}
	return repair.Part{
		Actions: []fault.Action{{
			Kind: fault.Evict, For: served, Target: evictedIdentity(evicted), Pod: &evicted,
			Safety: h.safetyReason(ctx, pod, findings, reasons), Loss: h.describeLoss(ctx, pod),
		}},
		Findings: findings,
	}, nil
}

func nothingToEvict(pod *corev1.Pod, reasons []string) string {
	text := fmt.Sprintf("no volume of pod %s requires eviction", evictedName(pod))
	if len(reasons) > 0 {
		text += ": " + strings.Join(reasons, "; ")
	}
	return text
}

// reasonToKeep says why the pod of a Diagnosis with these options is not evicted; empty: it may be.
func (h *EvictRecoverer) reasonToKeep(pod *corev1.Pod, o evictOptions) string {
	why := EvictionRefusal(pod, h.Allowed, o.daemonSet)
	if why == "" && !o.allowed {
		return evictionNotAsked
	}
	return why
}

// EvictionRefusal says why a pod is not evicted, whatever its volumes are like; empty: it may be. allowed is whether the agent may
// evict pods, and daemonSets whether also those of a DaemonSet are evicted.
func EvictionRefusal(pod *corev1.Pod, allowed, daemonSets bool) string {
	owner := metav1.GetControllerOf(pod)
	mirror := pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
	switch {
	case mirror, owner != nil && owner.Kind == "Node":
		return "it is a static pod: the API server has only a mirror of it, and evicting that ends nothing; move its manifest away and " +
			"back on the node"
	case pod.DeletionTimestamp != nil:
		return "it is being deleted already: " + evictionBlocked
	case podinfo.Ended(pod):
		return fmt.Sprintf("it has ended (phase %s) and does not run", pod.Status.Phase)
	case owner == nil:
		return "it has no controller, so no program would create it again; delete it and create it yourself"
	case owner.Kind == "DaemonSet" && !daemonSets:
		return fmt.Sprintf("DaemonSet %q would create it on this node again, with the same broken volume. "+
			"If a new pod gets a new mount, set %s to \"true\"", owner.Name, paramEvictDaemonSet)
	case !allowed:
		return repair.EvictionsNotAllowed
	}
	return ""
}

// evictionBlocked names the obstacles that may keep a pod that is going.
const evictionBlocked = "it goes when its containers have ended and the kubelet has unmounted its volumes; a volume that does not answer " +
	"can delay that"

// safetyReason says why it may be done.
func (h *EvictRecoverer) safetyReason(ctx context.Context, pod *corev1.Pod, findings []fault.Finding, reasons []string) string {
	owner := metav1.GetControllerOf(pod)
	text := "it has " + describeFindings(findings)
	if len(reasons) > 0 {
		text += ", which is not repaired here: " + strings.Join(reasons, "; ")
	}
	text += fmt.Sprintf("; %s %q creates a new pod in its place; PodDisruptionBudgets hold, and only the pod with UID %s is evicted",
		owner.Kind, owner.Name, pod.UID)
	switch owner.Kind {
	case "DaemonSet":
		text += "; the new pod runs on this node again"
	case "StatefulSet":
		text += "; the new pod is created after this one is gone"
	}
	if names, _, err := h.localVolumes(ctx, pod); err == nil && len(names) > 0 {
		text += fmt.Sprintf("; it is bound to this node by its local volumes (%s), and runs here again", strings.Join(names, ", "))
	}
	hung := slices.ContainsFunc(findings, func(f fault.Finding) bool { return fault.Known().Entry(f.Code).Breaks == fault.BreaksCallers })
	if hung {
		text += "; as the volume hangs, it may stay: " + evictionBlocked
	}
	return text
}

// describeFindings names the faults.
func describeFindings(findings []fault.Finding) string {
	var all []string
	for _, f := range findings {
		text := string(f.Code)
		if f.Volume != "" {
			text += " of volume " + f.Volume
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}

func evictedName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Parameters. They choose how, never what.
const (
	// ParamEvictAllowed is "true" or "false" (default): whether the pod may be evicted at all.
	ParamEvictAllowed = "param.recover.kubernetes.pod_evict.allowed"
	// paramEvictDaemonSet is "true" or "false" (default): whether a pod of a DaemonSet is evicted as well.
	paramEvictDaemonSet = "param.recover.kubernetes.pod_evict.daemon_set"
	// ParamEvictWaitSeconds is for how many seconds, 0 to 3600, the pod is waited for until it has gone. Default: 45,
	// and never longer than the operation has time.
	ParamEvictWaitSeconds = "param.recover.kubernetes.pod_evict.wait_seconds"
)

type evictOptions struct {
	restart.Options
	allowed, daemonSet bool
}

func evictOptionsOf(values map[string]string) (o evictOptions, err error) {
	if o.allowed, err = processor.ParseBool(values, ParamEvictAllowed, false); err != nil {
		return o, err
	}
	if o.daemonSet, err = processor.ParseBool(values, paramEvictDaemonSet, false); err != nil {
		return o, err
	}
	o.Options, err = restart.Keys{WaitSeconds: ParamEvictWaitSeconds}.Options(values)
	return o, err
}

// evictedIdentity names the pod of an action for people.
func evictedIdentity(p fault.Pod) string {
	return fmt.Sprintf("pod %s/%s (UID %s)", p.Namespace, p.Name, p.UID)
}

// Open implements repair.Family.
func (h *EvictRecoverer) Open() repair.Apply { return h.Apply }

// Apply judges whether the pod of the plan is still there and still as the plan says. One that has gone meanwhile, or
// is going, succeeds.
func (h *EvictRecoverer) Apply(ctx context.Context, request processor.Request, action fault.Action) (fault.Applied, error) {
	switch {
	case action.Kind != fault.Evict:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
	case action.Pod == nil || action.Pod.UID == "":
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no pod with a UID is named"))
	case action.Pod.Namespace != request.Pod.Namespace || action.Pod.Name != request.Pod.Name:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: %s is not the pod of the Diagnosis, %s/%s", evictedIdentity(*action.Pod),
			request.Pod.Namespace, request.Pod.Name))
	}
	options, err := evictOptionsOf(request.Values)
	if err != nil {
		return fault.Applied{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, request)
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound):
		return fault.AlreadySo("was gone already"), nil
	case err != nil:
		return fault.Applied{}, err
	case string(pod.UID) != action.Pod.UID:
		return fault.AlreadySo("was gone already: another pod has its name"), nil
	case pod.DeletionTimestamp != nil:
		return fault.AlreadySo("was being deleted already"), nil
	case elsewhere != "":
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	if why := h.reasonToKeep(pod, options); why != "" {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %s", evictedIdentity(*action.Pod), why))
	}
	findings, reasons, err := h.Judge.Unrepairable(ctx, action.Pod.UID)
	if err == nil && len(findings) == 0 {
		err = processor.Stalled(fmt.Errorf("evict %s: nothing was done: %s", evictedIdentity(*action.Pod), nothingToEvict(pod, reasons)))
	}
	return fault.Applied{}, err
}

// evictPollInterval is how often the pod is looked at while it is waited for.
const evictPollInterval = time.Second

// Verify has the pod waited for, and proves that it is gone, or on its way. While it is on its way its faults are not called healed.
func (h *EvictRecoverer) Verify(_ context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	options, err := evictOptionsOf(request.Values)
	if err != nil {
		return processor.Result{}, err
	}
	if len(plan.Actions) != 1 || plan.Actions[0].Pod == nil {
		return processor.Result{}, processor.Stalled(errors.New("read plan: it evicts no pod"))
	}
	planned := *plan.Actions[0].Pod
	did := evictedIdentity(planned) + " was evicted"
	if done := plan.Outcome(0); done.Already {
		did = fmt.Sprintf("%s was not evicted: %s", evictedIdentity(planned), done.Message)
	}
	var pod *corev1.Pod
	return processor.Result{Findings: plan.Findings, Wait: &processor.Wait{
		Limit: options.Wait, Interval: evictPollInterval,
		Look: func(ctx context.Context) (gone bool, err error) {
			pod, err = h.Pods.Pod(ctx, request.Pod.Namespace, request.Pod.Name)
			if errors.Is(err, kubelet.ErrPodNotFound) {
				return true, nil
			}
			if err != nil {
				return false, fmt.Errorf("get pod %s/%s: %w", request.Pod.Namespace, request.Pod.Name, err)
			}
			return string(pod.UID) != planned.UID, nil
		},
		End: func(ctx context.Context, gone bool, waited time.Duration) (processor.Result, error) {
			switch {
			case gone:
				return processor.Result{Values: map[string]string{KeyEvictResult: did + ", and is gone"}, Findings: processor.MarkHealed(plan.Findings, nil)}, nil
			case pod.DeletionTimestamp == nil:
				return processor.Result{}, processor.Stalled(fmt.Errorf("verify eviction of pod %s/%s: after %.0f s it is neither gone nor being deleted",
					pod.Namespace, pod.Name, waited.Seconds()))
			}
			did += ", and is being deleted: " + h.deletionBlockers(ctx, pod, time.Now())
			return processor.Result{Values: map[string]string{KeyEvictResult: did}, Findings: plan.Findings}, nil
		},
	}}, nil
}

// deletionBlockers says why a pod that is being deleted is still there. The deletion timestamp is when its grace period
// ends.
func (h *EvictRecoverer) deletionBlockers(ctx context.Context, pod *corev1.Pod, now time.Time) string {
	if left := pod.DeletionTimestamp.Sub(now).Round(time.Second); left > 0 {
		return fmt.Sprintf("its containers have %s left to end by themselves", left)
	}
	findings, _, err := h.Judge.Unrepairable(ctx, string(pod.UID))
	if err != nil || len(findings) == 0 {
		return "its grace period is over, and it is still there; " + evictionBlocked
	}
	return fmt.Sprintf("its grace period is over, and it stays on this node while it has %s: %s", describeFindings(findings), evictionBlocked)
}
