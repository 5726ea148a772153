// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpathremount

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/subpath"
	"kubediag.org/kubediag/internal/processor"
)

// other says why the pod does not have this fault, and which it has instead where that can be seen.
func other(ctx context.Context, n *kubelet.Node, s scope, report *subpath.Report) (processor.Result, error) {
	reasons := []string{fmt.Sprintf("%s has no stale subPath mount: of %d subPaths %d are bound, and of these %d have a source that is alive",
		s, len(s.wants), len(report.Binds), count(report.Binds, subpath.Alive))}
	var findings []fault.Finding
	for _, b := range report.Binds {
		if b.Verdict != subpath.Alive {
			reasons = append(reasons, fmt.Sprintf("%q is left alone: %s", b.State.Point, b.Why))
		}
		if b.Verdict == subpath.SourceGone {
			f := b.Finding(s.pod, report.Namespace)
			f.Code = fault.MissingBindSource
			findings = append(findings, f)
		}
	}
	for _, name := range s.suffering() {
		status, _ := subpath.StatusOf(s.pod, name)
		reasons = append(reasons, fmt.Sprintf("container %q is %s", name, subpath.Describe(status)))
		missing, err := subpath.MissingSources(ctx, n, s.pod, name)
		if err != nil {
			return processor.Result{}, err
		}
		findings = append(findings, missing...)
		findings = append(findings, mismatches(s.pod, name, report.Binds)...)
	}
	for _, f := range findings {
		reasons = append(reasons, fmt.Sprintf("%s in container %q: %s", f.Code, f.Container, f.Evidence[0]))
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; "), Findings: findings}, nil
}

func count(binds []subpath.Bind, v subpath.Verdict) int {
	return len(slices.DeleteFunc(slices.Clone(binds), func(b subpath.Bind) bool { return b.Verdict != v }))
}

// suffering lists the containers that do not run but should, in the order of the statuses.
func (s scope) suffering() []string {
	var names []string
	for _, list := range [][]corev1.ContainerStatus{
		s.pod.Status.InitContainerStatuses, s.pod.Status.ContainerStatuses, s.pod.Status.EphemeralContainerStatuses,
	} {
		for _, c := range list {
			ended := c.State.Terminated
			if c.State.Running == nil && (ended == nil || ended.ExitCode != 0) && (s.container == "" || s.container == c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// mismatches tells of a file that is mounted onto a directory, or the reverse: the runtime says so, and the source is
// seen to be there. What the image has at that path cannot be seen from here.
func mismatches(pod *corev1.Pod, name string, binds []subpath.Bind) []fault.Finding {
	s, _ := subpath.StatusOf(pod, name)
	hints := subpath.Hints(s)
	i := slices.IndexFunc(hints, func(h subpath.Hint) bool { return slices.Contains(h.Codes, fault.SourceTypeMismatch) })
	if i < 0 {
		return nil
	}
	var found []fault.Finding
	for _, b := range binds {
		if b.Container != name || b.Verdict != subpath.Alive {
			continue
		}
		what := "file"
		if b.State.Dir {
			what = "directory"
		}
		found = append(found, fault.Finding{
			Code: fault.SourceTypeMismatch, Pod: subpath.PodOf(pod), Container: name, Volume: b.Volume.Name,
			Evidence: []string{
				fmt.Sprintf("the source of volumeMounts[%d] is there and is a %s; the image may have the other kind at %q", b.Index, what,
					b.Mount.MountPath),
				hints[i].String(),
			},
		})
	}
	return found
}
