// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"path"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// SubPathName returns the subPath of a mount in the pod's spec, with its variables expanded as the kubelet does. It is empty
// if a variable is not known, or the kubelet would refuse the result.
func SubPathName(pod *corev1.Pod, w SubPathMount) string {
	return SubPathNames(pod, w.Container)(w.Mount)
}

// SubPathNames is SubPathName for all mounts of a container, whose variables are expanded once.
func SubPathNames(pod *corev1.Pod, container string) func(m corev1.VolumeMount) string {
	env := sync.OnceValue(func() map[string]string {
		if c, ok := findContainer(pod, container); ok {
			return environment(pod, c.env)
		}
		return nil
	})
	return func(m corev1.VolumeMount) string {
		name := m.SubPath
		if name == "" {
			known := env()
			if known == nil {
				return ""
			}
			name, _ = expand(m.SubPathExpr, func(key string) (string, bool) { return known[key], known[key] != "" })
		}
		if path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
			return ""
		}
		return name
	}
}

// environment returns the variables of a container whose values the pod gives. The kubelet has more: the variables of services,
// ConfigMaps and Secrets. So a value that refers to an unknown variable is not known either. Nor is a value that is too long for a path.
func environment(pod *corev1.Pod, list []corev1.EnvVar) map[string]string {
	env := map[string]string{}
	known := func(key string) (string, bool) {
		value, ok := env[key]
		return value, ok
	}
	for _, v := range list {
		value, ok := "", v.ValueFrom == nil
		if v.Value != "" {
			value, ok = expand(v.Value, known)
		} else if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			value, ok = field(pod, v.ValueFrom.FieldRef)
		}
		delete(env, v.Name)
		if ok {
			env[v.Name] = value
		}
	}
	return env
}

// maxExpanded is the length of the longest path that the kernel takes. Without a bound, forty variables that have the one before twice each have
// more than any machine's memory.
const maxExpanded = 4096

// expand replaces $(NAME) in text, and $$ by a single $. Any other text behind a $ stays as it is. ok is false if
// value does not know a name, or if the result is longer than a path.
func expand(text string, value func(name string) (string, bool)) (expanded string, ok bool) {
	var b strings.Builder
	last := strings.LastIndexByte(text, ')') // it closes all that is open before it
	for end := len(text); ; {
		plain, rest, found := strings.Cut(text, "$")
		if b.Len()+len(plain) > maxExpanded {
			return "", false
		}
		b.WriteString(plain)
		if !found {
			return b.String(), true
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && end-len(rest) < last:
			name, after, _ := strings.Cut(rest, ")")
			v, ok := value(name[1:])
			if !ok || b.Len()+len(v) > maxExpanded {
				return "", false
			}
			b.WriteString(v)
			text = after
		case rest == "":
			b.WriteByte('$')
			text = ""
		default:
			b.WriteString("$" + rest[:1])
			text = rest[1:]
		}
	}
}

// field returns the field of a pod that gives a variable its value. ok is false for a field that is not in this list.
func field(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (value string, ok bool) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", false
	}
	switch ref.FieldPath {
	case "metadata.name":
		return pod.Name, true
	case "metadata.namespace":
		return pod.Namespace, true
	case "metadata.uid":
		return string(pod.UID), true
	case "spec.nodeName":
		return pod.Spec.NodeName, true
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, true
	case "status.hostIP":
		return pod.Status.HostIP, true
	case "status.podIP":
		return pod.Status.PodIP, true
	case "status.hostIPs":
		return joined(pod.Status.HostIPs, func(ip corev1.HostIP) string { return ip.IP }), true
	case "status.podIPs":
		return joined(pod.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP }), true
	}
	if key, ok := subscript(ref.FieldPath, "metadata.labels"); ok {
		return pod.Labels[key], true
	}
	if key, ok := subscript(ref.FieldPath, "metadata.annotations"); ok {
		return pod.Annotations[key], true
	}
	return "", false
}

// subscript takes the key out of name['key'].
func subscript(fieldPath, name string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(fieldPath, name+"['")
	if !ok {
		return "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return key, ok
}

func joined[T any](list []T, text func(T) string) string {
	var all []string
	for _, x := range list {
		all = append(all, text(x))
	}
	return strings.Join(all, ",")
}
