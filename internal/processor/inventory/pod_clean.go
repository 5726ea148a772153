// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/redact"
)

// shownAnnotations are the domains whose annotations are copied with their values. Those of others may hold anything.
var shownAnnotations = []string{"kubernetes.io", "k8s.io", "prometheus.io", "kubediag.org"}

// sensitiveName finds the name of an option of a driver whose value is probably a credential. A longer name
// describes the credential, such as the file that has it.
var sensitiveName = regexp.MustCompile(`(?i)(pass|password|passwd|passphrase|[-_.]pwd|secret|token|credentials?|api[-_.]?key|[-_.]key|[-_.]pat|` +
	`auth|authorization|dsn|connection[-_.]?string|cookie)([-_.]?[0-9]+)?$`)

// CleanPod removes the fields of a pod that no reader needs, and those that may hold a credential. No value of an environment
// variable, of an argument or of a header is copied: names, references and numbers are enough for a mount.
func CleanPod(pod *corev1.Pod) {
	pod.ManagedFields = nil
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	for name, v := range pod.Annotations {
		if domain, _, _ := strings.Cut(name, "/"); slices.ContainsFunc(shownAnnotations, func(shown string) bool {
			return domain == shown || strings.HasSuffix(domain, "."+shown)
		}) {
			pod.Annotations[name] = redactOption(name, v)
		} else {
			redactValue(&v)
			pod.Annotations[name] = v
		}
	}
	for i := range pod.Spec.InitContainers {
		cleanContainer((*corev1.EphemeralContainerCommon)(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		cleanContainer((*corev1.EphemeralContainerCommon)(&pod.Spec.Containers[i]))
	}
	for i := range pod.Spec.EphemeralContainers {
		cleanContainer(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
	}
	for i := range pod.Spec.Volumes {
		// The options of drivers are cleaned: drivers take credentials by reference.
		v := &pod.Spec.Volumes[i]
		options := map[string]string{}
		switch {
		case v.CSI != nil:
			options = v.CSI.VolumeAttributes
		case v.FlexVolume != nil:
			options = v.FlexVolume.Options
		}
		for name, value := range options {
			options[name] = redactOption(name, value)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			cleanState(&list[i].State)
			cleanState(&list[i].LastTerminationState)
		}
	}
	pod.Status.Message = redact.Text(pod.Status.Message)
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Message = redact.Text(pod.Status.Conditions[i].Message)
	}
}

// redactValue puts a mark in the place of a value, so that it shows that there is one.
func redactValue(value *string) {
	if *value != "" {
		*value = redact.Mark
	}
}

func redactValues(values []string) {
	for i := range values {
		redactValue(&values[i])
	}
}

func cleanContainer(c *corev1.EphemeralContainerCommon) {
	for i := range c.Env {
		redactValue(&c.Env[i].Value)
	}
	redactValues(c.Command)
	redactValues(c.Args)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			cleanHandler(p.Exec, p.HTTPGet)
		}
	}
	if c.Lifecycle == nil {
		return
	}
	for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if h != nil {
			cleanHandler(h.Exec, h.HTTPGet)
		}
	}
}

func cleanHandler(exec *corev1.ExecAction, get *corev1.HTTPGetAction) {
	if exec != nil {
		redactValues(exec.Command)
	}
	if get == nil {
		return
	}
	if path, query, found := strings.Cut(get.Path, "?"); found {
		redactValue(&query)
		get.Path = path + "?" + query
	}
	for i := range get.HTTPHeaders {
		redactValue(&get.HTTPHeaders[i].Value)
	}
}

func cleanState(s *corev1.ContainerState) {
	if s.Waiting != nil {
		s.Waiting.Message = redact.Text(s.Waiting.Message)
	}
	if s.Terminated != nil {
		s.Terminated.Message = redact.Text(s.Terminated.Message)
	}
}

// redactOption returns as much of the value of a name as may be shown. Yes or no is no secret.
func redactOption(name, v string) string {
	switch {
	case slices.Contains([]string{"", "true", "false", "yes", "no", "none"}, v):
		return v
	case sensitiveName.MatchString(name):
		return redact.Mark
	}
	return redact.Text(v)
}
