// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/linux/mount"
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

// TestRefusedForKind: a bind is blamed only in the runtime's own words about it, in whichever runtime and on whichever root.
func TestRefusedForKind(t *testing.T) {
	t.Parallel()
	bind := Bind{
		SubPathMount: podinfo.SubPathMount{Container: "app", Mount: corev1.VolumeMount{MountPath: "/etc/extra.ini"}},
		State:        mount.State{ID: mount.ID{Point: "/var/lib/kubelet/pods/u/volume-subpaths/v/app/1"}},
	}
	for text, want := range map[string]bool{
		`error mounting "/var/lib/kubelet/pods/u/volume-subpaths/v/app/1" to rootfs at "/etc/extra.ini": mount src=x, flags=MS_BIND|MS_REC: not a directory`: true,
		"mount `/data/kubelet/pods/u/volume-subpaths/v/app/1` to `etc/extra.ini`: Not a directory":                                                           true,
		`rootfs_linux.go:58: mounting \\\"/x\\\" to rootfs \\\"/r\\\" at \\\"/etc/extra.ini\\\" caused \\\"not a directory\\\"`:                              true,
		`error mounting "/var/lib/kubelet/pods/u/volume-subpaths/v/app/10" to rootfs at "/etc/extra": not a directory`:                                       false,
		`error mounting "/var/lib/kubelet/pods/other/volume-subpaths/v/app/1" to rootfs at "/y": not a directory`:                                            false,
		`error mounting "/var/lib/kubelet/pods/u/volume-subpaths/v/app/1" to rootfs at "/etc/extra.ini": no such file or directory`:                          false,
		`exec: "/etc/extra.ini": is a directory`: false,
	} {
		status := corev1.ContainerStatus{State: state(true, "RunContainerError", text, 0)}
		if _, ok := RefusedForKind(status, bind); ok != want {
			t.Errorf("%s: %v, want %v", text, ok, want)
		}
		if _, ok := RefusedForKind(corev1.ContainerStatus{State: state(false, "Error", text, 100)}, bind); ok {
			t.Errorf("a container that ran says %s, and is believed", text)
		}
	}
}
