// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/processor"
)

// holdRetry is the wait if it is not known whether a policy holds a repair.
const holdRetry = 5 * time.Second

// errHeld is the error of a repair that a RecoveryPolicy or an annotation holds.
var errHeld = errors.New("held by policy")

// repairHolder has policies hold the repairs of Diagnoses.
type repairHolder struct {
	guard interface {
		Hold(ctx context.Context, code fault.Code, pod *corev1.Pod, by guard.Consent) (policy.Reason, error)
		AcquireRequested(ctx context.Context, r guard.Request) (policy.Reason, error)
		Ended(f fault.Finding, err error)
	}
	pods *nodePods
	// diagnoses has the Diagnoses of the node.
	diagnoses client.Reader
}

// holdRepairs returns a recoverer that asks the guard before each action.
func (k *repairHolder) holdRepairs(r processor.Recoverer) processor.Recoverer {
	h := heldRecoverer{Recoverer: r, holds: k}
	if e, ok := r.(processor.Excerpter); ok {
		return struct {
			heldRecoverer
			processor.Excerpter
		}{h, e}
	}
	return h
}

// heldRecoverer is a recoverer whose actions a policy can hold.
type heldRecoverer struct {
	processor.Recoverer
	holds *repairHolder
}

// Held implements processor.Holder. A Diagnosis that policies have asked for takes from their budgets, and is not only planned.
func (h heldRecoverer) Held(ctx context.Context, request processor.Request, action fault.Action) (string, error) {
	pod, err := h.holds.podOfAction(ctx, request, action)
	if err != nil {
		return "", err
	}
	d := h.holds.readDiagnosis(ctx, request.Diagnosis)
	if d.Labels[v1.LabelOrigin] == v1.OriginPolicy {
		return "", nil
	}
	held, err := h.holds.guard.Hold(ctx, action.Fault, pod, consentOf(d, pod))
	if err != nil || held.Why == "" {
		return "", err
	}
	return held.String(), nil
}

// Apply implements processor.Recoverer.
func (h heldRecoverer) Apply(ctx context.Context, request processor.Request, action fault.Action) (fault.Applied, error) {
	pod, err := h.holds.podOfAction(ctx, request, action)
	if err != nil {
		return fault.Applied{}, err
	}
	d := h.holds.readDiagnosis(ctx, request.Diagnosis)
	byPolicy := d.Labels[v1.LabelOrigin] == v1.OriginPolicy
	var held policy.Reason
	if byPolicy {
		held, err = h.holds.guard.AcquireRequested(ctx, guard.Request{
			Code: action.Fault, Pod: pod, Approved: d.Spec.Mode == v1.ModeApprove, Evicts: action.Kind == fault.Evict,
		})
	} else {
		held, err = h.holds.guard.Hold(ctx, action.Fault, pod, consentOf(d, pod))
	}
	if err != nil {
		return fault.Applied{}, &processor.WaitingError{Err: err, After: holdRetry}
	}
	if held.Why != "" {
		return fault.Applied{}, processor.Held(fmt.Errorf("%w: %s", errHeld, held))
	}
	done, err := h.Recoverer.Apply(ctx, request, action)
	_, waits := errors.AsType[*processor.WaitingError](err) // such as for a PodDisruptionBudget, which is no failure
	if byPolicy && !done.Already && ctx.Err() == nil && !waits {
		h.holds.guard.Ended(findingOf(action, pod), err)
	}
	return done, err
}

// findingOf returns the fault that an action is about, as far as budgets and breakers distinguish faults.
func findingOf(a fault.Action, pod *corev1.Pod) fault.Finding {
	finding := fault.Finding{Code: a.Fault, Container: a.Container, Volume: a.Volume}
	if pod != nil {
		finding.Pod = fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
	}
	if a.Mount != nil {
		finding.Mount = *a.Mount
	}
	return finding
}

// podOfAction returns the pod that an action concerns, or nil if there is none. The cache has no labels of a pod that is too large.
func (k *repairHolder) podOfAction(ctx context.Context, request processor.Request, action fault.Action) (*corev1.Pod, error) {
	if action.Pod != nil && action.Pod.UID != "" {
		if pod := k.pods.PodByUID(action.Pod.UID); pod != nil {
			if !extract.Large(pod) {
				return pod, nil
			}
			request.Pod.Namespace, request.Pod.Name = pod.Namespace, pod.Name
		}
	}
	if request.Pod.Name == "" {
		return nil, nil
	}
	pod, err := k.pods.findPod(ctx, types.NamespacedName{Namespace: request.Pod.Namespace, Name: request.Pod.Name})
	if errors.Is(err, kubelet.ErrPodNotFound) {
		return nil, nil
	}
	return pod, err
}

// readDiagnosis returns a Diagnosis of the node. One that is not known counts as that of a Trigger, which the policies
// hold.
func (k *repairHolder) readDiagnosis(ctx context.Context, of processor.Diagnosis) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	if err := k.diagnoses.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, d); err != nil {
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Trigger"}}
	}
	return d
}

// consentOf reports whether a person has allowed the repair of a Diagnosis that no policy has asked for. In mode
// Approve nothing is repaired before a person has approved it. pod is nil for a fault of no pod.
func consentOf(diagnosis *v1.Diagnosis, pod *corev1.Pod) guard.Consent {
	switch {
	case diagnosis.OwningTrigger() == nil && pod != nil && pod.Namespace != diagnosis.Namespace:
		return guard.MadeElsewhere
	case diagnosis.OwningTrigger() == nil:
		return guard.MadeByPerson
	case diagnosis.Spec.Mode == v1.ModeApprove:
		return guard.PlanApproved
	}
	return guard.NoConsent
}
