// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SubPathName returns the subPath of a mount in the pod's spec, with its variables expanded as the kubelet does. It is empty
// if a variable is not known, or the kubelet would refuse the result.
func SubPathName(pod *corev1.Pod, w SubPathMount) string {
	name := w.Mount.SubPath
	if name == "" {
		c, ok := findContainer(pod, w.Container)
		if !ok {
			return ""
		}
		env := environment(pod, c.env)
		name, _ = expand(w.Mount.SubPathExpr, func(key string) (string, bool) { return env[key], env[key] != "" })
	}
	if path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return ""
	}
	return name
}

// environment returns the variables of a container whose values the pod gives. The kubelet has more: the variables of services,
// ConfigMaps and Secrets. So a value that refers to an unknown variable is not known either.
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

// expand replaces $(NAME) in text, and $$ by a single $. Any other text behind a $ stays as it is. ok is false if
// value does not know a name.
func expand(text string, value func(name string) (string, bool)) (expanded string, ok bool) {
	var b strings.Builder
	for {
		plain, rest, found := strings.Cut(text, "$")
		b.WriteString(plain)
		if !found {
			return b.String(), true
		}
		name, after, closed := strings.Cut(rest, ")")
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && closed:
			v, ok := value(name[1:])
			if !ok {
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
