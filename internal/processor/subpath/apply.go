// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Open implements repair.Family. Each action looks for itself.
func (h *Recoverer) Open() repair.Apply { return h.Apply }

// Apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, action fault.Action) (done fault.Applied, err error) {
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	switch {
	case err != nil:
		return done, err
	case elsewhere != "":
		return done, processor.Stalled(errors.New(elsewhere))
	case action.Kind == fault.RemoveContainerRecord:
		return done, nil
	case action.Kind != fault.Unmount:
		return done, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
	}
	node, err := h.Kubelet.Node(ctx)
	if err != nil {
		return done, err
	}
	if action.Mount == nil {
		return done, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	point := action.Mount.Point
	if _, ok := podinfo.FindSubPathMount(node, pod, point); !ok {
		return done, processor.Stalled(fmt.Errorf("unmount %q: no subPath of pod %s/%s with UID %q belongs there", point, pod.Namespace,
			pod.Name, pod.UID))
	}
	if pod.DeletionTimestamp != nil {
		what, err := cri.PodRuns(ctx, h.Sources.Runtime, string(pod.UID))
		if err != nil {
			return done, err
		}
		if what != "" {
			return done, processor.Stalled(fmt.Errorf("unmount %q: its pod is being deleted, and may still use it: %s", point, what))
		}
	}
	points := []string{}
	if subpath.IsAsked(action.Mount.FSType) { // else the table would be read for nothing, for each bind of the pod
		points = append(points, point)
	}
	asked, err := h.ask(ctx, node, pod, points)
	if err != nil {
		return done, err
	}
	ns, err := node.Namespace()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return done, err
	}
	err = ns.Do(func() (err error) {
		done, err = subpath.Apply(ctx, node, pod, action, asked)
		return err
	})
	return done, stalled(err)
}

// ask asks the file systems of binds of the pod that only those know about.
func (h *Recoverer) ask(ctx context.Context, node *kubelet.Node, pod *corev1.Pod, points []string) (subpath.Answers, error) {
	return subpath.Ask(ctx, h.Sources.Prober, node, func(string) *corev1.Pod { return pod }, points)
}

// silenceRetry is the wait after a file system did not answer.
const silenceRetry = 5 * time.Second

// stalled marks an error after which another try does not help, or helps after a while.
func stalled(err error) error {
	_, refused := errors.AsType[*subpath.RefusedError](err)
	switch {
	case errors.Is(err, subpath.ErrNoAnswer):
		return &processor.WaitingError{Err: err, After: silenceRetry}
	case refused:
		return processor.Stalled(err)
	}
	return err
}
