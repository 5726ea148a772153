// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/test/growthtest"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "one", "B": "two", "EMPTY": "", "odd.name": "x", "DOLLAR": "$(A)"}
	for text, want := range map[string]string{
		"":              "",
		"plain":         "plain",
		"$(A)":          "one",
		"x$(A)y$(B)z":   "xoneytwoz",
		"$(A)$(B)":      "onetwo",
		"$(EMPTY)":      "",
		"$(odd.name)":   "x",
		"$$(A)":         "$(A)",
		"$$$(A)":        "$one",
		"$$$$(A)":       "$$(A)",
		"$":             "$",
		"a$":            "a$",
		"$A":            "$A",
		"${A}":          "${A}",
		"$(A":           "$(A",
		"$(A$(B)":       "unknown",
		"$()":           "unknown",
		"$(C)":          "unknown",
		"$(DOLLAR)":     "$(A)", // what comes out is not looked at again
		"$é$(A)":        "$éone",
		"$(A)/$(NONE)x": "unknown",
	} {
		got, ok := expand(text, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
		if !ok {
			got = "unknown"
		}
		if got != want {
			t.Errorf("%q is expanded to %q, want %q", text, got, want)
		}
	}
}

func fieldRef(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
}

// knownPod has something in every field that a variable can be made from.
func knownPod() *corev1.Pod {
	pod := kubelettest.NewPod()
	pod.Labels = map[string]string{"app": "shop", "example.com/tier": "front"}
	pod.Annotations = map[string]string{"note": "a b"}
	pod.Spec.ServiceAccountName = "robot"
	pod.Status.HostIP, pod.Status.PodIP = "10.0.0.1", "10.1.0.1"
	pod.Status.HostIPs = []corev1.HostIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd01::1"}}
	return pod
}

func TestSubPathOfFields(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"metadata.name":                           "web",
		"metadata.namespace":                      "default",
		"metadata.uid":                            "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10",
		"metadata.labels['app']":                  "shop",
		"metadata.labels['example.com/tier']":     "front",
		"metadata.labels['none']":                 "", // an empty variable is none to the kubelet
		"metadata.annotations['note']":            "a b",
		"spec.nodeName":                           "my-node",
		"spec.serviceAccountName":                 "robot",
		"status.hostIP":                           "10.0.0.1",
		"status.podIP":                            "10.1.0.1",
		"status.hostIPs":                          "10.0.0.1,fd00::1",
		"status.podIPs":                           "10.1.0.1,fd01::1",
		"metadata.labels":                         "",
		"metadata.labels[app]":                    "",
		"spec.hostname":                           "",
		"metadata.annotations['note'].metadata.x": "",
	} {
		pod := knownPod()
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", ValueFrom: fieldRef(path)}}
		w := SubPathMount{Container: "app", Mount: corev1.VolumeMount{SubPathExpr: "d/$(X)"}}
		if want != "" {
			want = "d/" + want
		}
		if got := SubPathName(pod, w); got != want {
			t.Errorf("%s gives %q, want %q", path, got, want)
		}
	}
}

func TestSubPathOfVariables(t *testing.T) {
	t.Parallel()
	literal := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	from := func(name string, source corev1.EnvVarSource) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &source}
	}
	for name, c := range map[string]struct {
		env  []corev1.EnvVar
		expr string
		want string
	}{
		"literal":                     {[]corev1.EnvVar{literal("A", "x")}, "$(A)", "x"},
		"refers to an earlier one":    {[]corev1.EnvVar{literal("A", "x"), literal("B", "$(A)/y")}, "$(B)", "x/y"},
		"refers to a later one":       {[]corev1.EnvVar{literal("B", "$(A)/y"), literal("A", "x")}, "$(B)", ""},
		"refers to itself":            {[]corev1.EnvVar{literal("A", "x"), literal("A", "$(A)y")}, "$(A)", "xy"},
		"the last one counts":         {[]corev1.EnvVar{literal("A", "x"), literal("A", "y")}, "$(A)", "y"},
		"the last one is not known":   {[]corev1.EnvVar{literal("A", "x"), literal("A", "$(SVC_HOST)")}, "$(A)", ""},
		"escaped reference":           {[]corev1.EnvVar{literal("A", "x$$(B)")}, "$(A)", "x$(B)"},
		"a service's":                 {nil, "$(KUBERNETES_SERVICE_HOST)", ""},
		"refers to a service's":       {[]corev1.EnvVar{literal("A", "$(KUBERNETES_SERVICE_HOST)")}, "$(A)", ""},
		"empty":                       {[]corev1.EnvVar{literal("A", "")}, "x$(A)", ""},
		"not used though unknown":     {[]corev1.EnvVar{from("A", corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}), literal("B", "b")}, "$(B)", "b"},
		"of a Secret":                 {[]corev1.EnvVar{from("A", corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}})}, "$(A)", ""},
		"of a ConfigMap":              {[]corev1.EnvVar{from("A", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}})}, "$(A)", ""},
		"of a resource":               {[]corev1.EnvVar{from("A", corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{}})}, "$(A)", ""},
		"of another API version":      {[]corev1.EnvVar{from("A", corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v2", FieldPath: "metadata.name"}})}, "$(A)", ""},
		"climbs":                      {[]corev1.EnvVar{literal("A", "../../..")}, "x/$(A)", ""},
		"absolute":                    {[]corev1.EnvVar{literal("A", "/etc")}, "$(A)", ""},
		"dots that do not climb":      {[]corev1.EnvVar{literal("A", "..x/y..")}, "$(A)", "..x/y.."},
		"no variable in it":           {nil, "plain", "plain"},
		"in a name that ends nowhere": {nil, "$(A", "$(A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := knownPod()
			pod.Spec.Containers[0].Env = c.env
			w := SubPathMount{Container: "app", Mount: corev1.VolumeMount{SubPathExpr: c.expr}}
			if got := SubPathName(pod, w); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func FuzzExpand(f *testing.F) {
	for _, text := range []string{"$(A)", "$$", "$(", "$)", "a$(b)c$$(d)", "$$$"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		growthtest.Text(t, 1<<13, text, func(text string) { expand(text, func(string) (string, bool) { return "v", true }) })
		got, ok := expand(text, func(string) (string, bool) { return "v", true })
		if !ok && len(text) <= maxExpanded || len(got) > len(text) {
			t.Errorf("%q is expanded to %q, %v", text, got, ok)
		}
		if !strings.Contains(text, "$") && ok && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}

// TestVariablesDoNotExplode has each variable have the one before twice: the last one would have more bytes than any memory, in the agent that keeps
// the pod and in the manager, before the kubelet sees it. A name that is as long as a path is still known.
func TestVariablesDoNotExplode(t *testing.T) {
	t.Parallel()
	pod := knownPod()
	for i := range 64 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("A", i+1), Value: fmt.Sprintf("$(A%d)$(A%[1]d)", i)})
	}
	pod.Spec.Containers[0].Env = append([]corev1.EnvVar{{Name: "A0", Value: "x"}}, pod.Spec.Containers[0].Env...)
	names := SubPathNames(pod, "app")
	for expr, want := range map[string]string{"$(A1)": "xx", "$(A12)": strings.Repeat("x", maxExpanded), "$(A13)": "", "$(A64)": "", "a/$(A12)": ""} {
		if got := names(corev1.VolumeMount{SubPathExpr: expr}); got != want {
			t.Errorf("%s has %d bytes, want %d", expr, len(got), len(want))
		}
	}
}
