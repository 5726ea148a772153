// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestClaimVolume: a PersistentVolume is given the name in the spec only if no other volume of the pod can be meant.
func TestClaimVolume(t *testing.T) {
	t.Parallel()
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	rbd := corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}
	scratch := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	type volumes map[string]corev1.VolumeSource
	for name, c := range map[string]struct {
		volumes volumes
		name    string
		bound   int // the index of the volumeMount that has a bind of the PersistentVolume; -1: none
		want    string
	}{
		"one claim":                          {volumes{"d": claim, "tmp": scratch}, "pvc-1", -1, "d"},
		"one ephemeral volume":               {volumes{"d": ephemeral}, "pvc-1", -1, "d"},
		"no claim":                           {volumes{"tmp": scratch}, "pvc-1", -1, ""},
		"one that a driver may be handed":    {volumes{"d": rbd}, "pvc-1", -1, ""},
		"a claim beside such a one":          {volumes{"d": claim, "r": rbd}, "pvc-1", -1, ""},
		"two claims":                         {volumes{"a": claim, "b": claim}, "pvc-1", -1, ""},
		"two claims, the first has a bind":   {volumes{"a": claim, "b": claim}, "pvc-1", 0, "a"},
		"two claims, the second has a bind":  {volumes{"a": claim, "b": claim}, "pvc-1", 1, "b"},
		"a volume that is none of a claim's": {volumes{"d": claim, "tmp": scratch}, "tmp", -1, ""},
		"a claim's name in the spec":         {volumes{"d": claim}, "d", -1, "d"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "a", SubPath: "x"}, {Name: "b", SubPath: "x"}},
		}}}}
		for name, source := range c.volumes {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		}
		got, ok := ClaimVolume(pod, c.name, func(container string, index int) bool { return container == "app" && index == c.bound })
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, ok, c.want)
		}
	}
}
