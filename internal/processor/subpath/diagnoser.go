// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"encoding/json"
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
	KeyDiagnoserResult  = "diagnoser.kubernetes.subpath_remount.result"
	KeyBugLink          = "diagnoser.kubernetes.subpath_remount.bug_link"
	KeySourcePath       = "diagnoser.kubernetes.subpath_remount.original_source_path"
	KeySourcePaths      = "diagnoser.kubernetes.subpath_remount.original_source_paths"
	KeyDestinationPath  = "diagnoser.kubernetes.subpath_remount.original_destination_path"
	KeyDestinationPaths = "diagnoser.kubernetes.subpath_remount.original_destination_paths"
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
}

// Name is subpathRemountDiagnoser.
func (d *Diagnoser) Name() string { return "subpathRemountDiagnoser" }

// Run looks at every subPath of the pod, or of the container that the request names, and where none is stale at what
// its containers mount that are not started.
func (d *Diagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	pod, elsewhere, err := podref.Load(ctx, d.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	scope := podScopeOf(pod, r.Pod.Container)
	switch {
	case podinfo.Ended(pod):
		return ended(scope), nil
	case len(scope.wants) == 0 && len(podinfo.Unstarted(pod, scope.container)) == 0:
		return processor.Result{NotApplicable: scope.noSubPath()}, nil
	}
	n, err := d.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	report, err := subpath.Inspect(ctx, n, pod, scope.container)
	if err != nil {
		return processor.Result{}, err
	}
	c := classifyBinds(n, report)
	if len(c.stale) > 0 {
		return found(pod, c)
	}
	return otherReasons(ctx, n, scope, c)
}

// classifiedBinds is what was seen of the pod, and what the kubelet does about it.
type classifiedBinds struct {
	*subpath.Report
	// stale are the binds that stay stale; renewed those that the kubelet replaces itself.
	stale, renewed []subpath.Bind
	// renews is what is known of the kubelet, in words.
	renews string
}

func classifyBinds(n *kubelet.Node, report *subpath.Report) classifiedBinds {
	c := classifiedBinds{Report: report, renews: "this kubelet keeps such a bind at the container's next start (Kubernetes before 1.19)"}
	renews, err := n.ReplacesStaleBinds()
	switch {
	case err != nil:
		c.renews = err.Error()
	case renews:
		c.renews = "this kubelet replaces binds that are out of date, but not this one: the subPath names the very file that is bound"
	}
	for _, b := range report.Stale() {
		if err == nil && renews && b.WillBeReplaced() {
			c.renewed = append(c.renewed, b)
		} else {
			c.stale = append(c.stale, b)
		}
	}
	return c
}

// podScope is what is looked at.
type podScope struct {
	pod       *corev1.Pod
	container string // empty: all of them
	wants     []podinfo.SubPathMount
}

func podScopeOf(pod *corev1.Pod, container string) podScope {
	s := podScope{pod: pod, container: container}
	for _, w := range podinfo.SubPathMounts(pod) {
		if container == "" || w.Container == container {
			s.wants = append(s.wants, w)
		}
	}
	return s
}

// String is the subject of a sentence.
func (s podScope) String() string {
	if s.container != "" {
		return fmt.Sprintf("container %q of pod %s/%s", s.container, s.pod.Namespace, s.pod.Name)
	}
	return fmt.Sprintf("pod %s/%s", s.pod.Namespace, s.pod.Name)
}

func (s podScope) noSubPath() string { return fmt.Sprintf("%s mounts no volume with a subPath", s) }

// found returns the fault.
func found(pod *corev1.Pod, c classifiedBinds) (processor.Result, error) {
	var sources, destinations []string
	var findings []fault.Finding
	for _, b := range c.stale {
		sources = append(sources, b.Source)
		destinations = append(destinations, b.State.Point)
		f := b.Finding(pod, c.Namespace)
		f.Evidence = append(f.Evidence, c.renews)
		findings = append(findings, f)
	}
	values := map[string]string{
		KeyDiagnoserResult: resultMet,
		KeyBugLink:         bugLink,
		KeySourcePath:      sources[0],
		KeyDestinationPath: destinations[0],
	}
	for key, list := range map[string][]string{KeySourcePaths: sources, KeyDestinationPaths: destinations} {
		encoded, err := json.Marshal(list)
		if err != nil {
			return processor.Result{}, fmt.Errorf("encode %q: %w", key, err)
		}
		values[key] = string(encoded)
	}
	return processor.Result{Values: values, Findings: findings}, nil
}
