// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// repairHolder has policies hold the repairs of Diagnoses. It is the repair.Gate of the agent.
type repairHolder struct {
	guard interface {
		Hold(ctx context.Context, code fault.Code, pod *corev1.Pod, by guard.Consent) (policy.Reason, error)
		HoldRequested(ctx context.Context, r guard.Request) (policy.Reason, error)
		AcquireRequested(ctx context.Context, r guard.Request) (policy.Reason, error)
		Ended(key fault.Key, pod fault.Pod, err error)
	}
	pods *nodePods
	// diagnoses has the Diagnoses of the node.
	diagnoses client.Reader
}

// Check implements repair.Gate.
func (k *repairHolder) Check(ctx context.Context, request processor.Request, action fault.Action) (string, error) {
	pod, err := k.podOfAction(ctx, request, action)
	if err != nil {
		return "", err
	}
	d := k.readDiagnosis(ctx, request.Diagnosis)
	var held policy.Reason
	if byPolicy(d) {
		held, err = k.guard.HoldRequested(ctx, requestOf(d, pod, action))
	} else {
		// A person may have allowed the repair of a Diagnosis that no policy has asked for. In mode Approve nothing is repaired before a
		// person has approved it.
		consent := guard.NoConsent
		switch byPerson := d.OwningTrigger() == nil; {
		case byPerson && pod != nil && pod.Namespace != d.Namespace: // pod is nil for a fault of no pod
			consent = guard.MadeElsewhere
		case byPerson:
			consent = guard.MadeByPerson
		case d.Spec.Mode == v1.ModeApprove:
			consent = guard.PlanApproved
		}
		held, err = k.guard.Hold(ctx, action.Key().Code, pod, consent)
	}
	return held.String(), err
}

// Take implements repair.Gate. Only a Diagnosis that policies have asked for takes from their budgets.
func (k *repairHolder) Take(ctx context.Context, request processor.Request, part repair.Part) (string, error) {
	d := k.readDiagnosis(ctx, request.Diagnosis)
	if !byPolicy(d) {
		return "", nil
	}
	action := part.Actions[max(0, slices.IndexFunc(part.Actions, func(a fault.Action) bool { return a.Kind == fault.Evict }))]
	pod, err := k.podOfAction(ctx, request, action)
	if err != nil {
		return "", err
	}
	held, err := k.guard.AcquireRequested(ctx, requestOf(d, pod, action))
	return held.String(), err
}

// Ended implements repair.Gate.
func (k *repairHolder) Ended(ctx context.Context, request processor.Request, action fault.Action, err error) {
	if pod, unknown := k.podOfAction(ctx, request, action); unknown == nil && byPolicy(k.readDiagnosis(ctx, request.Diagnosis)) {
		of := fault.Pod{}
		if pod != nil {
			of = podinfo.PodOf(pod)
		}
		k.guard.Ended(action.Key(), of, err)
	}
}

// byPolicy reports whether policies have asked for a Diagnosis.
func byPolicy(d *v1.Diagnosis) bool { return d.Labels[v1.LabelOrigin] == v1.OriginPolicy }

// requestOf is the request to the guard for an action of a Diagnosis that a policy made.
func requestOf(d *v1.Diagnosis, pod *corev1.Pod, a fault.Action) guard.Request {
	return guard.Request{Code: a.Key().Code, Pod: pod, Approved: d.Spec.Mode == v1.ModeApprove, Evicts: a.Kind == fault.Evict}
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
