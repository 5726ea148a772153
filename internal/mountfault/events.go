// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/podinfo"
)

// ReasonFaultGone is the reason of the Event that a fault is gone. One that is present has its code for the reason.
const ReasonFaultGone = "FaultGone"

// maxClaims bounds how many claims of a pod are looked at.
const maxClaims = 16

// announcer sends Events on what is broken.
type announcer struct {
	*Options
	errors *errorLog
}

// announce sends the Event that is due: the fault has come, lasts, or is gone. One that comes and goes has at most two
// in Interval.
func (a *announcer) announce(ctx context.Context, item *entry) {
	silent := time.Since(item.said)
	switch {
	case item.kept:
	case item.want != nil && (!item.announced && (item.said.IsZero() || silent >= a.Interval) || silent >= repeatInterval):
		if !item.announced {
			a.findClaim(ctx, item)
		}
		item.said, item.announced = time.Now(), true
		f := item.want
		a.say(ctx, f, corev1.EventTypeWarning, f.Status.Code, kubeclient.EventAdvice(f.Status.Summary, kubeclient.MountFaultCommand(f)))
	case item.gone && item.announced:
		item.announced = false
		a.sayGone(ctx, item)
	}
}

// sayGone sends an Event that the fault is gone.
func (a *announcer) sayGone(ctx context.Context, e *entry) {
	f := e.last
	text := fmt.Sprintf("%s is gone after %s", f.Status.Code, time.Since(f.Status.Since.Time).Round(time.Second))
	if whose := Whose(f.Status.Container, f.Status.Volume); whose != "" {
		text += ": " + whose
	}
	a.say(ctx, f, corev1.EventTypeNormal, ReasonFaultGone, kubeclient.EventMessage(text, ""))
}

// say sends an Event on all that is broken: the pod and, if the volume is dead, its claim; or the node. A pod that is
// gone has no reader.
func (a *announcer) say(ctx context.Context, mountFault *v1.MountFault, kind, reason, message string) {
	p := mountFault.Status.Pod
	if p == nil {
		node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.Node, UID: types.UID(a.Node)} // as the kubelet names it
		a.Events.Event(node, kind, reason, message)
		return
	}
	if a.Pods.PodByUID(string(p.UID)) == nil {
		return
	}
	a.Events.Event(PodReference(p), kind, reason, message)
	if mountFault.Status.Claim == "" {
		return
	}
	claim, err := a.claim(ctx, p.Namespace, mountFault.Status.Claim)
	if err != nil {
		a.errors.note(ctx, err)
		return
	}
	a.Events.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}, kind, reason, message)
}

// PodReference is a pod as an Event names it.
func PodReference(p *v1.FaultPod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// findClaim finds the claim of a volume that is dead: the one of the pod that is bound to it.
func (a *announcer) findClaim(ctx context.Context, item *entry) {
	mountFault := item.want
	p := mountFault.Status.Pod
	if p == nil || ofContainer(fault.Code(mountFault.Status.Code)) || mountFault.Status.Volume == "" || mountFault.Status.Claim != "" {
		return
	}
	pod := a.Pods.PodByUID(string(p.UID))
	if pod == nil {
		return
	}
	names := podinfo.Claims(pod)
	for _, name := range names[:min(len(names), maxClaims)] {
		claim, err := a.claim(ctx, pod.Namespace, name)
		if client.IgnoreNotFound(err) != nil {
			a.errors.note(ctx, err)
			return
		}
		if err == nil && claim.Spec.VolumeName == mountFault.Status.Volume {
			mountFault.Status.Claim, item.claim = claim.Name, claim.Name
			return
		}
	}
}

func (a *announcer) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := a.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, claim); err != nil {
		return nil, fmt.Errorf("reading persistentvolumeclaim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}
