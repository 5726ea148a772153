// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
)

func TestMounters(t *testing.T) {
	t.Parallel()
	claim := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}
	}
	mounts := func(names ...string) (all []corev1.VolumeMount) {
		for _, name := range names {
			all = append(all, corev1.VolumeMount{Name: name})
		}
		return all
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			claim("data"), {Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}},
			{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		},
		InitContainers: []corev1.Container{{Name: "init", VolumeMounts: mounts("scratch")}},
		Containers: []corev1.Container{
			{Name: "app", VolumeMounts: mounts("data", "host")}, {Name: "sidecar", VolumeMounts: mounts("inline")}, {Name: "none"},
		},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", VolumeMounts: mounts("data"),
		}}},
	}}
	for name, c := range map[string]struct {
		volume Volume
		want   []string
	}{
		"of a claim":                   {Volume{Plugin: kubelet.CSIPlugin, Name: "pvc-1"}, []string{"init", "app", "debug"}},
		"in the spec":                  {Volume{Plugin: kubelet.CSIPlugin, Name: "inline"}, []string{"sidecar"}},
		"hostPath":                     {Volume{Plugin: HostPathPlugin, Name: "host"}, []string{"app"}},
		"hostPath that is none":        {Volume{Plugin: HostPathPlugin, Name: "other"}, nil},
		"volume called as a claim one": {Volume{Plugin: kubelet.CSIPlugin, Name: "data"}, []string{"init", "app", "debug"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.volume.Mounters(pod)); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}
