// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import "testing"

// TestParseLoop: only a file of the kubelet's own for a raw block volume has the UID of a pod.
func TestParseLoop(t *testing.T) {
	t.Parallel()
	const plugins, uid, digest = "/k/plugins", "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10", "0123456789abcdef0123456789abcdef"
	for file, want := range map[string]LeftLoop{
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/dev/" + uid:                 {PodUID: uid, Volume: "pvc-1"},
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/dev/" + uid + " (deleted)":  {PodUID: uid, Volume: "pvc-1"},
		plugins + "/kubernetes.io/local-volume/volumeDevices/pv-2/" + digest:          {PodUID: digest, Volume: "pv-2"},
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/dev/image":                  {},
		plugins + "/kubernetes.io/csi/volumeDevices/" + uid:                           {},
		plugins + "/example.com/csi/volumeDevices/pvc-1/dev/" + uid:                   {},
		plugins + "/kubernetes.io/csi/pv/pvc-1/globalmount/" + uid:                    {},
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/../../x/dev/" + uid:         {},
		"/other/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/" + uid:             {},
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/dev/" + uid + "/0":          {},
		plugins + "/kubernetes.io/csi/volumeDevices/pvc-1/dev/" + uid + "-0123456789": {},
		"": {},
	} {
		got := parseLoop(plugins, file)
		if want.PodUID == "" {
			if got != nil {
				t.Errorf("%q: %+v", file, got)
			}
			continue
		}
		if want.File = file; got == nil || *got != want {
			t.Errorf("%q: %+v, want %+v", file, got, want)
		}
	}
}
