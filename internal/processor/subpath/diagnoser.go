// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// Keys of the results. Those that hold one of several bear that of the first stale bind, in the order of the spec.
const (
	keyDiagnoserResult  = "diagnoser.kubernetes.subpath_remount.result"
	keyBugLink          = "diagnoser.kubernetes.subpath_remount.bug_link"
	keySourcePath       = "diagnoser.kubernetes.subpath_remount.original_source_path"
	keySourcePaths      = "diagnoser.kubernetes.subpath_remount.original_source_paths"
	keyDestinationPath  = "diagnoser.kubernetes.subpath_remount.original_destination_path"
	keyDestinationPaths = "diagnoser.kubernetes.subpath_remount.original_destination_paths"
)

const (
	resultMet = "pod met a bug of subpath-remounting"
	bugLink   = "https://github.com/kubernetes/kubernetes/issues/68211"
)

// Diagnoser is the processor subpathRemountDiagnoser.
//
// It diagnoses kubernetes#68211: a container cannot start, because the kubelet keeps a subPath bind whose source was
// deleted. It decides from the pod's spec and status, the live mount table of the kubelet's namespace, and the kernel's
// answer about each mount. It reads no parameters and no results of earlier operations, and changes nothing. If it can
// prove another fault, it names it.
type Diagnoser struct {
	Pods    kubelet.Pods
	Kubelet kubelet.Locator
	Sources subpath.Sources
}

// Name is subpathRemountDiagnoser.
func (d *Diagnoser) Name() string { return "subpathRemountDiagnoser" }

// Run looks at every subPath of the pod, or of the container that the request names. If none is stale, it looks at the
// sources of what the containers mount.
func (d *Diagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	pod, elsewhere, err := podref.Load(ctx, d.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	scope := podScope{pod: pod, container: r.Pod.Container}
	for _, m := range podinfo.SubPathMounts(pod) {
		if scope.container == "" || m.Container == scope.container {
			scope.expectedMounts = append(scope.expectedMounts, m)
		}
	}
	switch {
	case podinfo.Ended(pod) && pod.DeletionTimestamp == nil:
		return endedResult(scope), nil
	case len(scope.expectedMounts) == 0 && !subpath.HasSources(pod, scope.container):
		return processor.Result{NotApplicable: scope.noSubPathReason()}, nil
	}
	node, err := d.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	report, err := subpath.Inspect(ctx, node, d.Sources, pod, scope.container)
	if err != nil {
		return processor.Result{}, err
	}
	c := classifyBinds(pod, report)
	if len(c.stale) > 0 {
		var sources, destinations []string
		var findings []fault.Finding
		for _, b := range c.stale {
			sources, destinations = append(sources, b.Source), append(destinations, b.State.Point)
			findings = append(findings, b.Finding(pod, c.Namespace))
		}
		values := map[string]string{
			keyDiagnoserResult: resultMet, keyBugLink: bugLink, keySourcePath: sources[0], keyDestinationPath: destinations[0],
		}
		err := processor.AddJSON(values, map[string]any{keySourcePaths: sources, keyDestinationPaths: destinations})
		return processor.Result{Values: values, Findings: findings, Unjudged: unjudgedBinds(c.Binds)}, err
	}
	bad, err := subpath.BadSources(ctx, node, pod, scope.container, d.Sources.ClaimPaths)
	if err != nil {
		return processor.Result{}, err
	}
	return otherReasons(scope, c, bad), nil
}

// classifiedBinds are the binds of the pod, by the part of the kubelet in them.
type classifiedBinds struct {
	*subpath.Report
	// stale are the binds that stay stale; leftToKubelet those that the kubelet replaces or unmounts itself.
	stale, leftToKubelet []subpath.Bind
}

func classifyBinds(pod *corev1.Pod, report *subpath.Report) classifiedBinds {
	classified := classifiedBinds{Report: report}
	for _, b := range report.Stale() {
		if b.LeftToKubelet() || pod.DeletionTimestamp != nil && !b.KeepsPod {
			classified.leftToKubelet = append(classified.leftToKubelet, b)
		} else {
			classified.stale = append(classified.stale, b)
		}
	}
	return classified
}

// podScope is the part of a pod that is looked at.
type podScope struct {
	pod            *corev1.Pod
	container      string // empty: all of them
	expectedMounts []podinfo.SubPathMount
}

// String is the subject of a sentence.
func (s podScope) String() string { return podinfo.Subject(s.pod, s.container) }

func (s podScope) noSubPathReason() string {
	return fmt.Sprintf("%s mounts no volume with a subPath", s)
}
