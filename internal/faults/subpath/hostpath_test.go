// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/podinfo"
)

// TestNames: a message names a path where it has the whole of it, and no longer one.
func TestNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`failed to mkdir "/opt/data": mkdir /opt/data: read-only file system`: true,
		"stat /opt/data: no such file or directory":                           true,
		"stat /opt/data/: no such file or directory":                          true,
		"/opt/data": true,
		"mount /opt/database and then /opt/data,": true,
		"stat /opt/data/more: no such file":       false,
		"stat /opt/data.ini: no such file":        false,
		"stat /opt/data-2: no such file":          false,
		"stat /srv/opt/data: no such file":        false,
		"":                                        false,
	} {
		if got := containsPath(text, "/opt/data/"); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if containsPath("mkdir /: no", "/") {
		t.Error("every path begins with the root")
	}
}

// TestRefusedForKind: a mount is blamed only in the runtime's own words about it, in whichever runtime and on whichever root.
func TestRefusedForKind(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.UID = "u"
	pod.Spec.Volumes = append(pod.Spec.Volumes, hostPathOf("conf", "/srv/conf"), hostPathOf("twice", "/srv/twice"))
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "configmap", MountPath: "/etc/extra.ini", SubPath: "key"}, {Name: "secret", MountPath: "/etc/whole"}, {Name: "conf", MountPath: "/etc/host/"},
		{Name: "twice", MountPath: "/a"}, {Name: "twice", MountPath: "/b"},
	}
	for text, want := range map[string][]int{
		`error mounting "/var/lib/kubelet/pods/u/volume-subpaths/configmap/app/0" to rootfs at "/etc/extra.ini": mount src=x, flags=MS_BIND|MS_REC: not a directory`: {0},
		"mount `/data/kubelet/pods/u/volume-subpaths/configmap/app/0` to `etc/extra.ini`: Not a directory":                                                           {0},
		`rootfs_linux.go:58: mounting \\\"/x\\\" to rootfs \\\"/r\\\" at \\\"/etc/extra.ini\\\" caused \\\"not a directory\\\"`:                                      {0},
		`error mounting "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/secret" to rootfs at "/etc/whole": create mountpoint for /etc/whole mount: not a directory: unknown: ` +
			`Are you trying to mount a directory onto a file (or vice-versa)? Check if the specified host path exists and is the expected type`: {1},
		`mounting "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/secret" to rootfs "/d/merged" at "/d/merged/etc/whole" caused "not a directory"`: {1},
		"mount `/k/pods/u/volumes/kubernetes.io~secret/secret` to `/x`: Not a directory":                                                                 {1},
		`error mounting "/srv/conf" to rootfs at "/etc/host": mount /srv/conf:/etc/host (via /proc/self/fd/6), flags: 0x5000: not a directory`:           {2},
		`error mounting "/srv/conf" to rootfs at "/elsewhere": not a directory`:                                                                          {2},
		`error mounting "/srv/twice" to rootfs at "/b": not a directory`:                                                                                 {4},
		`error mounting "/srv/twice" to rootfs at "/elsewhere": not a directory`:                                                                         nil,
		`error mounting "/var/lib/kubelet/pods/u/volume-subpaths/configmap/app/10" to rootfs at "/etc/extra": not a directory`:                           nil,
		`error mounting "/var/lib/kubelet/pods/other/volume-subpaths/configmap/app/0" to rootfs at "/y": not a directory`:                                nil,
		`error mounting "/k/pods/u/volume-subpaths/configmap/app/0" to rootfs at "/etc/extra.ini": no such file or directory`:                            nil,
		`exec: "/etc/extra.ini": is a directory`:                                                                                                         nil,
	} {
		of := func(state corev1.ContainerState) map[int]string {
			c := containerSources{podSources: podSources{node: testLayout(), pod: pod}, name: "app", status: corev1.ContainerStatus{State: state}}
			return c.refusedForKind(podinfo.VolumeMounts(pod, "app"))
		}
		if got := slices.Sorted(maps.Keys(of(state(true, "RunContainerError", text, 0)))); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if got := of(state(false, "Error", text, 100)); len(got) > 0 {
			t.Errorf("a container that ran says %s, and is believed", text)
		}
	}
}

func hostPathOf(name, at string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at}}}
}
