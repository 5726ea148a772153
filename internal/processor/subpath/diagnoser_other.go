// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
)

// otherReasons says why the pod does not have this fault, and which it has instead if that can be seen.
func otherReasons(scope podScope, seen classifiedBinds, bad []fault.Finding) processor.Result {
	reasons, findings := []string{scope.noSubPathReason()}, []fault.Finding(nil)
	if len(scope.expectedMounts) > 0 {
		reasons, findings = describeBinds(scope, seen)
	}
	findings = append(findings, bad...)
	for _, name := range podinfo.Unstarted(scope.pod, scope.container) {
		reasons = append(reasons, describeContainer(scope.pod, name)...)
	}
	for _, f := range findings {
		reasons = append(reasons, fmt.Sprintf("%s in container %q: %s", f.Code, f.Container, f.Evidence[0]))
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; "), Findings: findings, Unjudged: unjudgedBinds(seen.Binds)}
}

// endedResult says why a pod that is over has no fault.
func endedResult(s podScope) processor.Result {
	reasons := []string{fmt.Sprintf("%s has no fault: the pod has ended (%s), so no container of it is started again, and the kubelet takes "+
		"its volumes away", s, s.pod.Status.Phase)}
	for _, name := range podinfo.Unstarted(s.pod, s.container) {
		reasons = append(reasons, describeContainer(s.pod, name)...)
	}
	return processor.Result{NotApplicable: strings.Join(reasons, "; ")}
}

// describeContainer returns the state of a container, and advice if it is not started again.
func describeContainer(pod *corev1.Pod, name string) []string {
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

// describeBinds describes every bind that is not alive.
func describeBinds(scope podScope, seen classifiedBinds) (reasons []string, findings []fault.Finding) {
	subject := "has no stale subPath mount"
	if len(seen.leftToKubelet) > 0 {
		subject = "has no subPath mount that stays stale"
	}
	alive := slices.DeleteFunc(slices.Clone(seen.Binds), func(b subpath.Bind) bool { return b.Verdict != subpath.Alive })
	reasons = []string{fmt.Sprintf("%s %s: of %d subPaths %d are bound, and of these %d have a source that is alive", scope, subject,
		len(scope.expectedMounts), len(seen.Binds), len(alive))}
	for _, bind := range seen.Binds {
		switch bind.Verdict {
		case subpath.Alive, subpath.OfVolume:
			continue
		case subpath.Stale:
			reasons = append(reasons, fmt.Sprintf("%q is out of date, and %s: %s (source on the host: %q; mountinfo: %s)", bind.State.Point,
				bind.HabitReason, bind.Reason, bind.Source, bind.Line))
			continue
		case subpath.SourceGone, subpath.WrongSource:
			findings = append(findings, bind.Finding(scope.pod, seen.Namespace))
		}
		reasons = append(reasons, fmt.Sprintf("%q is left alone: %s", bind.State.Point, bind.Reason))
	}
	return reasons, findings
}

// unjudgedBinds are those that may be stale, which cannot be proven.
func unjudgedBinds(binds []subpath.Bind) (texts []string) {
	for _, bind := range binds {
		if bind.Verdict == subpath.Unproven {
			texts = append(texts, fmt.Sprintf("the subPath bind at %q: %s", bind.State.Point, bind.Reason))
		}
	}
	return texts
}
