// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpathremount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/subpath"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/processor"
)

// pollInterval is how often the pod is looked at while it is waited for.
const pollInterval = time.Second

// Verify proves that the planned mounts are gone and no other mount of the pod is, and waits until the containers that
// could not start have.
func (h *Recoverer) Verify(ctx context.Context, r processor.Request, p processor.Plan) (processor.Result, error) {
	o, err := optionsOf(r.Values)
	if err != nil {
		return processor.Result{}, err
	}
	m, err := recall(p)
	if err != nil {
		return processor.Result{}, err
	}
	pod, err := h.pod(ctx, r, m)
	if err != nil {
		return processor.Result{}, err
	}
	n, err := h.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	if err := verifyMounts(ctx, n, pod, p); err != nil {
		return processor.Result{}, err
	}
	if err := m.verifyOthers(ctx, n, pod); err != nil {
		return processor.Result{}, err
	}
	values, err := results(p)
	if err != nil {
		return processor.Result{}, err
	}
	if len(m.Waiting) > 0 && o.wait > 0 {
		took, err := h.await(ctx, r, m, o.within(ctx))
		if err != nil {
			return processor.Result{}, err
		}
		values[KeyRunningAfter] = fmt.Sprintf("%.1f", took.Seconds())
	}
	return processor.Result{Values: values, Findings: healed(p.Findings)}, nil
}

// pod gives the pod, if it is still the one of the plan.
func (h *Recoverer) pod(ctx context.Context, r processor.Request, m memory) (*corev1.Pod, error) {
	pod, elsewhere, err := subpath.Load(ctx, h.Pods, r)
	switch {
	case err != nil:
		return nil, err
	case elsewhere != "":
		return nil, processor.Stalled(errors.New(elsewhere))
	case string(pod.UID) != m.PodUID:
		return nil, processor.Stalled(fmt.Errorf("get pod %s/%s: it was replaced: UID %q was planned for, %q is there now", pod.Namespace,
			pod.Name, m.PodUID, pod.UID))
	}
	return pod, nil
}

// verifyMounts makes sure that the planned mounts are gone, and that no other stale one has come to light in their
// places.
func verifyMounts(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, p processor.Plan) error {
	report, err := subpath.Inspect(ctx, n, pod, "")
	if err != nil {
		return err
	}
	table := mountinfo.NewTable(report.Mounts)
	for _, a := range p.Actions {
		if a.Mount == nil {
			continue
		}
		m, ok := table.ByID(a.Mount.MountInfoID)
		if ok && m.Point == a.Mount.Point && m.Root == a.Mount.Root && m.Parent == a.Mount.ParentID {
			return processor.Stalled(fmt.Errorf("verify unmount of %q: mount %d is still in the mount table", m.Point, m.ID))
		}
		for _, b := range report.Stale() {
			if b.State.Point == a.Mount.Point {
				return processor.Stalled(fmt.Errorf("verify unmount of %q: another stale mount is there now: diagnose again", b.State.Point))
			}
		}
	}
	return nil
}

// verifyOthers makes sure that the mounts that were none of the plan's business are still there. Those of a pod that is
// being deleted go anyway.
func (m memory) verifyOthers(ctx context.Context, n *kubelet.Node, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	table, err := n.Mounts(ctx)
	if err != nil {
		return err
	}
	for _, o := range m.Others {
		if !o.stands(table) {
			return processor.Stalled(fmt.Errorf("verify mounts of the pod: mount %d at %q was not to be touched, and is gone", o.ID, o.Point))
		}
	}
	return nil
}

func results(p processor.Plan) (map[string]string, error) {
	var sentences []string
	for _, a := range p.Actions {
		if a.Kind == Unmount {
			sentences = append(sentences, fmt.Sprintf("Succeesfully umount %s on host", a.Target))
		}
	}
	if len(sentences) == 0 {
		return nil, processor.Stalled(errors.New("read plan: it unmounts nothing"))
	}
	all, err := json.Marshal(sentences)
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", KeyResults, err)
	}
	return map[string]string{KeyResult: sentences[0], KeyResults: string(all)}, nil
}

func healed(findings []fault.Finding) []fault.Finding {
	var all []fault.Finding
	for _, f := range findings {
		f.Healed = true
		all = append(all, f)
	}
	return all
}

// await waits until every container has started, and says how long that took.
func (h *Recoverer) await(ctx context.Context, r processor.Request, m memory, limit time.Duration) (time.Duration, error) {
	begin := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		pod, err := h.pod(ctx, r, m)
		if err != nil {
			return 0, err
		}
		missing := m.notStarted(pod)
		if len(missing) == 0 {
			missing = h.doubts(ctx, pod, m)
		}
		if len(missing) == 0 {
			return time.Since(begin), nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-over.C:
			return 0, processor.Stalled(fmt.Errorf("wait for pod %s/%s: its mounts are repaired, but after %.0f s %s", pod.Namespace,
				pod.Name, limit.Seconds(), strings.Join(missing, ", ")))
		case <-tick.C:
		}
	}
}

// doubts looks at the pod again where it may only be remembered that its containers run.
func (h *Recoverer) doubts(ctx context.Context, pod *corev1.Pod, m memory) []string {
	source, ok := h.Pods.(kubelet.FreshPods)
	if !ok {
		return nil
	}
	now, err := source.FreshPod(ctx, pod.Namespace, pod.Name)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("it could not be seen whether they run: %v", err)}
	case now.UID != pod.UID:
		return []string{fmt.Sprintf("the pod was replaced: it has UID %q now", now.UID)}
	}
	return m.notStarted(now)
}

// notStarted describes the containers that have not been started since the plan was made.
func (m memory) notStarted(pod *corev1.Pod) []string {
	var missing []string
	for _, w := range m.Waiting {
		s, _ := subpath.StatusOf(pod, w.Container)
		if started(s, w.Past) {
			continue
		}
		text := fmt.Sprintf("container %q is still not running: %s", w.Container, subpath.Describe(s))
		if outlook, why := subpath.OutlookOf(pod, w.Container); outlook == subpath.Over {
			text += ", and it is not started again: " + why
		}
		missing = append(missing, text)
	}
	return missing
}

// started tells whether a container runs, or has run and ended since the plan was made.
func started(s corev1.ContainerStatus, past []string) bool {
	if s.State.Running != nil {
		return true
	}
	return slices.ContainsFunc(terminations(s), func(t *corev1.ContainerStateTerminated) bool {
		neverRan := t.StartedAt.Unix() <= 0 || t.Reason == "StartError" || t.Reason == "ContainerCannotRun"
		return !neverRan && !slices.Contains(past, t.ContainerID)
	})
}

// pastOf lists the runtime's containers that a status speaks of.
func pastOf(s corev1.ContainerStatus) []string {
	past := []string{s.ContainerID}
	for _, t := range terminations(s) {
		past = append(past, t.ContainerID)
	}
	return past
}

func terminations(s corev1.ContainerStatus) []*corev1.ContainerStateTerminated {
	all := []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated}
	return slices.DeleteFunc(all, func(t *corev1.ContainerStateTerminated) bool { return t == nil })
}
