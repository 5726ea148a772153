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
func other(ctx context.Context, n *kubelet.Node, s scope, seen seen) (processor.Result, error) {
	reasons, findings := []string{s.noSubPath()}, []fault.Finding(nil)
	if len(s.wants) > 0 {
		reasons, findings = binds(s, seen)
	}
	bad, err := subpath.BadSources(ctx, n, s.pod, s.container)
	if err != nil {
		return processor.Result{}, err
	}
	findings = append(findings, bad...)
	for _, name := range subpath.Unstarted(s.pod, s.container) {
		reasons = append(reasons, describe(s.pod, name))
		reasons = append(reasons, race(s.pod, name, seen)...)
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
func ended(s scope) processor.Result {
	reasons := []string{fmt.Sprintf("%s has no fault: the pod has ended (%s), so no container of it is started again, and the kubelet takes "+
		"its volumes away", s, s.pod.Status.Phase)}
	for _, name := range subpath.Unstarted(s.pod, s.container) {
		reasons = append(reasons, describe(s.pod, name))
		reasons = append(reasons, race(s.pod, name, seen{Report: &subpath.Report{}})...)
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; ")}
}

func describe(pod *corev1.Pod, name string) string {
	status, known := subpath.StatusOf(pod, name)
	if !known {
		return fmt.Sprintf("container %q has no status yet", name)
	}
	return fmt.Sprintf("container %q is %s", name, subpath.Describe(status))
}

// binds tells of every bind that is not alive.
func binds(s scope, seen seen) (reasons []string, findings []fault.Finding) {
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
				"(source on the host: %q; mountinfo: %s)", b.State.Point, b.Why, b.Source, b.Line))
			continue
		case subpath.SourceGone:
			findings = append(findings, b.Finding(s.pod, seen.Namespace))
		}
		reasons = append(reasons, fmt.Sprintf("%q is left alone: %s", b.State.Point, b.Why))
	}
	return reasons, findings
}

// race tells of a container that failed to start with a message that points at one of its subPaths, though none of its
// binds is to blame now. The message proves nothing: it is told as what it is.
func race(pod *corev1.Pod, name string, seen seen) []string {
	for _, b := range seen.Binds {
		if b.Container == name && b.Verdict != subpath.Alive && b.Verdict != subpath.Stale {
			return nil
		}
	}
	status, _ := subpath.StatusOf(pod, name)
	for _, h := range subpath.Hints(status) {
		at, ok := h.PointsAt(pod, name)
		if !ok {
			continue
		}
		text := fmt.Sprintf("the message in %s points at %s, and no bind of container %q keeps it from starting now: this is how a volume "+
			"looks that was written anew between the kubelet's bind and the container's start (%s)", h.Where, at, name, raceLink)
		return []string{text, after(pod, name)}
	}
	return nil
}

// after says what becomes of a container that lost such a race.
func after(pod *corev1.Pod, name string) string {
	outlook, why := subpath.OutlookOf(pod, name)
	switch {
	case outlook != subpath.Over:
		return "left alone, the next start binds afresh where it has to"
	case pod.Spec.RestartPolicy == corev1.RestartPolicyNever && pod.DeletionTimestamp == nil:
		return "the pod will not start again and must be created anew: its restartPolicy is Never"
	}
	return fmt.Sprintf("container %q is not started again: %s", name, why)
}

func count(binds []subpath.Bind, v subpath.Verdict) int {
	return len(slices.DeleteFunc(slices.Clone(binds), func(b subpath.Bind) bool { return b.Verdict != v }))
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
