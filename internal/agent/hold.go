// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
)

// holdRetry is the wait if it is not known whether a policy holds a repair.
const holdRetry = 5 * time.Second

// errHeld is the error of a repair that a RecoveryPolicy holds.
var errHeld = errors.New("held by policy")

// holds has policies hold the repairs of Diagnoses.
type holds struct {
	guard interface {
		Hold(ctx context.Context, code fault.Code, pod *corev1.Pod, by guard.Consent) (why string, err error)
		AcquireRequested(ctx context.Context, r guard.Request) (why string, err error)
		Ended(f fault.Finding, err error)
	}
	index *podIndex
	pods  *pods
	// diagnoses has the Diagnoses of the node.
	diagnoses client.Reader
}

// wrap returns a recoverer that asks the guard before each action.
func (s *holds) wrap(r processor.Recoverer) processor.Recoverer {
	h := holdable{Recoverer: r, holds: s}
	if e, ok := r.(processor.Excerpter); ok {
		return struct {
			holdable
			processor.Excerpter
		}{h, e}
	}
	return h
}

// holdable is a recoverer whose actions a policy can hold.
type holdable struct {
	processor.Recoverer
	holds *holds
}

// Apply implements processor.Recoverer.
func (h holdable) Apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	pod, err := h.holds.podOf(ctx, r, a)
	if err != nil {
		return fault.Applied{}, err
	}
	d := h.holds.diagnosis(ctx, r.Diagnosis)
	byPolicy := d.Labels[v1.LabelOrigin] == v1.OriginPolicy
	var why string
	if byPolicy {
		why, err = h.holds.guard.AcquireRequested(ctx, guard.Request{
			Code: a.Fault, Pod: pod, Approved: d.Spec.Mode == v1.ModeApprove, Evicts: a.Kind == fault.Evict,
		})
	} else {
		why, err = h.holds.guard.Hold(ctx, a.Fault, pod, consentOf(d))
	}
	if err != nil {
		return fault.Applied{}, &processor.WaitingError{Err: err, After: holdRetry}
	}
	if why != "" {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("%w: %s", errHeld, why))
	}
	done, err := h.Recoverer.Apply(ctx, r, a)
	var waits *processor.WaitingError // such as for a PodDisruptionBudget, which is no failure
	if byPolicy && !done.Already && ctx.Err() == nil && !errors.As(err, &waits) {
		h.holds.guard.Ended(findingOf(a, pod), err)
	}
	return done, err
}

// findingOf returns the fault that an action is about, as far as budgets and breakers distinguish faults.
func findingOf(a fault.Action, pod *corev1.Pod) fault.Finding {
	f := fault.Finding{Code: a.Fault, Container: a.Container}
	if pod != nil {
		f.Pod = fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
	}
	if a.Mount != nil {
		f.Mount = *a.Mount
	}
	return f
}

// podOf returns the pod that an action concerns, or nil if there is none.
func (s *holds) podOf(ctx context.Context, r processor.Request, action fault.Action) (*corev1.Pod, error) {
	if action.Pod != nil && action.Pod.UID != "" {
		if pod := s.index.PodByUID(action.Pod.UID); pod != nil {
			return pod, nil
		}
	}
	if r.Pod.Name == "" {
		return nil, nil
	}
	pod, err := s.pods.find(ctx, types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name})
	if errors.Is(err, kubelet.ErrPodNotFound) {
		return nil, nil
	}
	return pod, err
}

// diagnosis returns a Diagnosis of the node. One that is not known counts as that of a Trigger, which the policies hold.
func (s *holds) diagnosis(ctx context.Context, of processor.Diagnosis) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	if err := s.diagnoses.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, d); err != nil {
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Trigger"}}
	}
	return d
}

// consentOf reports whether a person has allowed the repair of a Diagnosis that no policy has asked for. In mode
// Approve nothing is repaired before a person has approved it.
func consentOf(d *v1.Diagnosis) guard.Consent {
	triggered := slices.ContainsFunc(d.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "Trigger" && o.APIVersion == v1.GroupVersion.String()
	})
	switch {
	case !triggered:
		return guard.MadeByPerson
	case d.Spec.Mode == v1.ModeApprove:
		return guard.PlanApproved
	}
	return guard.NoConsent
}
