// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package poddetail

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// redacted stands where a credential was.
const redacted = "[redacted]"

// sensitive finds a name, such as that of a variable or a flag, whose value is a credential by the look of it. A name
// that goes on after that names something about the credential, such as the file that it is in.
var sensitive = regexp.MustCompile(`(?i)(password|passwd|passphrase|[-_.]pwd|secret|token|credentials?|api[-_.]?key|` +
	`(access|private|secret|encryption|signing|account)[-_.]?key|auth|authorization|dsn|connection[-_.]?string|cookie)([-_.]?[0-9]+)?$`)

// Values that are credentials whatever their name.
var (
	inURL      = regexp.MustCompile(`(://[^\s/:@]*:)[^\s/@]+@`)
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`)
	webToken   = regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*`)
	bearer     = regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}`)
	assigned   = regexp.MustCompile(`(?i)([\w.-]*?(?:password|passwd|passphrase|secret|token|api[-_]?key|access[-_]?key|private[-_]?key)["']?(?:=|:\s?)["']?)([^\s"',;&$]+)`)
)

// clean takes out of a pod what nobody needs and what looks like a credential.
func clean(pod *corev1.Pod) {
	pod.ManagedFields = nil
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	for name, v := range pod.Annotations {
		pod.Annotations[name] = value(name, v)
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
		cleanVolume(&pod.Spec.Volumes[i])
	}
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			cleanState(&list[i].State)
			cleanState(&list[i].LastTerminationState)
		}
	}
	pod.Status.Message = text(pod.Status.Message)
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Message = text(pod.Status.Conditions[i].Message)
	}
}

func cleanContainer(c *corev1.EphemeralContainerCommon) {
	for i := range c.Env {
		c.Env[i].Value = value(c.Env[i].Name, c.Env[i].Value)
	}
	arguments(c.Command)
	arguments(c.Args)
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
		arguments(exec.Command)
	}
	if get == nil {
		return
	}
	get.Path = text(get.Path)
	for i := range get.HTTPHeaders {
		get.HTTPHeaders[i].Value = value(get.HTTPHeaders[i].Name, get.HTTPHeaders[i].Value)
	}
}

// cleanVolume looks at the options that a pod hands to drivers.
func cleanVolume(v *corev1.Volume) {
	options := map[string]string{}
	switch {
	case v.CSI != nil:
		options = v.CSI.VolumeAttributes
	case v.FlexVolume != nil:
		options = v.FlexVolume.Options
	}
	for name, option := range options {
		options[name] = value(name, option)
	}
}

func cleanState(s *corev1.ContainerState) {
	if s.Waiting != nil {
		s.Waiting.Message = text(s.Waiting.Message)
	}
	if s.Terminated != nil {
		s.Terminated.Message = text(s.Terminated.Message)
	}
}

// arguments looks at a command line: --password=x, and --password x.
func arguments(args []string) {
	for i, arg := range args {
		name, v, assigned := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(name, "-") && assigned:
			args[i] = name + "=" + value(name, v)
		case i > 0 && isFlag(args[i-1]) && !strings.HasPrefix(arg, "-"):
			args[i] = value(args[i-1], arg)
		default:
			args[i] = text(arg)
		}
	}
}

func isFlag(arg string) bool { return strings.HasPrefix(arg, "-") && !strings.ContainsAny(arg, "= \n") }

// value is what may be shown of the value of a name. A reference to a variable is no secret, and neither is yes or no.
func value(name, v string) string {
	switch v {
	case "", "true", "false", "yes", "no", "none":
		return v
	}
	if !sensitive.MatchString(name) || strings.HasPrefix(v, "$(") && strings.HasSuffix(v, ")") {
		return text(v)
	}
	return redacted
}

// text is what may be shown of a text without a name.
func text(s string) string {
	s = privateKey.ReplaceAllString(s, redacted)
	s = webToken.ReplaceAllString(s, redacted)
	s = bearer.ReplaceAllString(s, "${1}"+redacted)
	s = inURL.ReplaceAllString(s, "${1}"+redacted+"@")
	return assigned.ReplaceAllString(s, "${1}"+redacted)
}
