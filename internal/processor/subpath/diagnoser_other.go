// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
)

// otherReasons says why the pod does not have this fault, and which it has instead if that can be seen.
func otherReasons(ctx context.Context, n *kubelet.Node, s podScope, seen classifiedBinds) (processor.Result, error) {
	reasons, findings := []string{s.noSubPath()}, []fault.Finding(nil)
	if len(s.wants) > 0 {
		reasons, findings = binds(s, seen)
	}
	bad, err := subpath.BadSources(ctx, n, s.pod, s.container)
	if err != nil {
		return processor.Result{}, err
	}
	findings = append(findings, bad...)
	for _, name := range podinfo.Unstarted(s.pod, s.container) {
		reasons = append(reasons, describe(s.pod, name)...)
		if s.pod.DeletionTimestamp == nil {
			findings = append(findings, mismatches(s.pod, name, seen.Binds)...)
		}
	}
	for _, f := range findings {
		reasons = append(reasons, fmt.Sprintf("%s in container %q: %s", f.Code, f.Container, f.Evidence[0]))
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; "), Findings: findings}, nil
}

// ended says why a pod that is over has no fault.
func ended(s podScope) processor.Result {
	reasons := []string{fmt.Sprintf("%s has no fault: the pod has ended (%s), so no container of it is started again, and the kubelet takes "+
		"its volumes away", s, s.pod.Status.Phase)}
	for _, name := range podinfo.Unstarted(s.pod, s.container) {
		reasons = append(reasons, describe(s.pod, name)...)
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; ")}
}

// describe returns the state of a container, and what to do if it is not started again.
func describe(pod *corev1.Pod, name string) []string {
	status, known := podinfo.ContainerStatus(pod, name)
	if !known {
		return []string{fmt.Sprintf("container %q has no status yet", name)}
	}
	reasons := []string{fmt.Sprintf("container %q is %s", name, podinfo.DescribeStatus(status))}
	switch outlook, why := podinfo.RestartStateOf(pod, name); {
	case outlook != podinfo.Finished:
	case pod.Spec.RestartPolicy == corev1.RestartPolicyNever && pod.DeletionTimestamp == nil:
		reasons = append(reasons, fmt.Sprintf("container %q is not started again, and the pod must be replaced: its restartPolicy is Never", name))
	case !podinfo.Ended(pod):
		reasons = append(reasons, fmt.Sprintf("container %q is not started again: %s", name, why))
	}
	return reasons
}

// binds describes every bind that is not alive.
func binds(s podScope, seen classifiedBinds) (reasons []string, findings []fault.Finding) {
	subject := "has no stale subPath mount"
	if len(seen.renewed) > 0 {
		subject = "has no subPath mount that stays stale"
	}
	reasons = []string{fmt.Sprintf("%s %s: of %d subPaths %d are bound, and of these %d have a source that is alive", s, subject,
		len(s.wants), len(seen.Binds), count(seen.Binds, subpath.Alive))}
	for _, b := range seen.Binds {
		switch b.Verdict {
		case subpath.Alive:
			continue
		case subpath.Stale:
			reasons = append(reasons, fmt.Sprintf("%q is out of date, and this kubelet replaces it itself at the container's next start: %s "+
				"(source on the host: %q; mountinfo: %s)", b.State.Point, b.Reason, b.Source, b.Line))
			continue
		case subpath.SourceGone:
			findings = append(findings, b.Finding(s.pod, seen.Namespace))
		}
		reasons = append(reasons, fmt.Sprintf("%q is left alone: %s", b.State.Point, b.Reason))
	}
	return reasons, findings
}

func count(binds []subpath.Bind, v subpath.Verdict) int {
	return len(slices.DeleteFunc(slices.Clone(binds), func(b subpath.Bind) bool { return b.Verdict != v }))
}

// mismatches returns a finding for each bind of a container that may be of another kind than its place in the image:
// the runtime refused the container for that, and the source is seen to be there. The image cannot be seen from here.
func mismatches(pod *corev1.Pod, name string, binds []subpath.Bind) (found []fault.Finding) {
	status, _ := podinfo.ContainerStatus(pod, name)
	quote, ok := subpath.WrongKindMessage(status)
	if !ok {
		return nil
	}
	for _, b := range binds {
		if b.Container != name || b.Verdict != subpath.Alive {
			continue
		}
		kind := "file"
		if b.State.Dir {
			kind = "directory"
		}
		found = append(found, fault.Finding{
			Code: fault.SourceTypeMismatch, Pod: podinfo.PodOf(pod), Container: name, Volume: b.Volume.Name,
			Details: podinfo.DetailsOf(pod, name),
			Evidence: []string{
				fmt.Sprintf("the source of volumeMounts[%d] is there and is a %s; the image may have the other kind at %q", b.Index, kind,
					b.Mount.MountPath),
				quote,
			},
		})
	}
	return found
}
