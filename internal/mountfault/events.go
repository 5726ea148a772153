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

// reasonFaultGone is the reason of the Event that a fault is gone. The reason of a present fault is its code.
const reasonFaultGone = "FaultGone"

// maxClaims bounds the claims of a pod that are read.
const maxClaims = 16

// announce sends the Event that is due: the fault has come, lasts, or is gone. A fault that comes and goes has at most two
// in Interval.
func (w *Writer) announce(ctx context.Context, item *entry) {
	silent := time.Since(item.said)
	switch {
	case item.kept:
	case item.want != nil && (!item.announced && (item.said.IsZero() || silent >= w.Interval) || silent >= repeatInterval):
		if !item.announced {
			w.findClaim(ctx, item)
		}
		item.said, item.announced = time.Now(), true
		f := item.want
		w.sendEvent(ctx, f, corev1.EventTypeWarning, f.Status.Code, kubeclient.EventAdvice(f.Status.Summary, kubeclient.MountFaultCommand(f)))
	case item.gone && item.announced:
		item.announced = false
		f := item.last
		text := fmt.Sprintf("%s is gone after %s", f.Status.Code, time.Since(f.Status.Since.Time).Round(time.Second))
		if whose := Whose(f.Status.Container, f.Status.Volume); whose != "" {
			text += ": " + whose
		}
		w.sendEvent(ctx, f, corev1.EventTypeNormal, reasonFaultGone, kubeclient.EventMessage(text, ""))
	}
}

// sendEvent sends an Event on each broken object: the pod and, if the volume is dead, its claim; or the node. A pod that is
// gone has no reader.
func (w *Writer) sendEvent(ctx context.Context, mountFault *v1.MountFault, kind, reason, message string) {
	p := mountFault.Status.Pod
	if p == nil {
		node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.Node, UID: types.UID(w.Node)} // as the kubelet names it
		w.Events.Event(node, kind, reason, message)
		return
	}
	if w.Pods.PodByUID(string(p.UID)) == nil {
		return
	}
	w.Events.Event(PodReference(p), kind, reason, message)
	if mountFault.Status.Claim == "" {
		return
	}
	claim, err := w.claim(ctx, p.Namespace, mountFault.Status.Claim)
	if err != nil {
		w.noteError(ctx, err)
		return
	}
	w.Events.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}, kind, reason, message)
}

// PodReference returns a pod as an Event names it.
func PodReference(p *v1.FaultPod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// findClaim finds the claim of a dead volume: the claim of the pod that is bound to it.
func (w *Writer) findClaim(ctx context.Context, item *entry) {
	mountFault := item.want
	p := mountFault.Status.Pod
	if p == nil || fault.Code(mountFault.Status.Code).OfContainer() || mountFault.Status.Volume == "" || mountFault.Status.Claim != "" {
		return
	}
	pod := w.Pods.PodByUID(string(p.UID))
	if pod == nil {
		return
	}
	names := podinfo.Claims(pod)
	for _, name := range names[:min(len(names), maxClaims)] {
		claim, err := w.claim(ctx, pod.Namespace, name)
		if client.IgnoreNotFound(err) != nil {
			w.noteError(ctx, err)
			return
		}
		if err == nil && claim.Spec.VolumeName == mountFault.Status.Volume {
			mountFault.Status.Claim, item.claim = claim.Name, claim.Name
			return
		}
	}
}

func (w *Writer) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := w.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, claim); err != nil {
		return nil, fmt.Errorf("reading persistentvolumeclaim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}
