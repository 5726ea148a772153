// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestNamesOfAVolume: a fault keeps the kubelet's name of the volume, and has the name in the pod's spec beside it where only one
// can be meant.
func TestNamesOfAVolume(t *testing.T) {
	for name, c := range map[string]struct {
		claims, bound bool // a second claim; a subPath bind of the first
		container     bool // the runtime knows a container that has the volume
		shared        bool // another pod uses the volume
		spec          string
	}{
		"one claim":                   {spec: "claim"},
		"two claims":                  {claims: true},
		"two claims, and a bind":      {claims: true, bound: true, spec: "claim"},
		"two claims, and a container": {claims: true, container: true, spec: "claim"},
		"shared":                      {shared: true, spec: "claim"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, deepDir)
			if c.claims {
				claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"}}
				s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, corev1.Volume{Name: "more", VolumeSource: claim})
			}
			mountAt := func(point string) {
				s.must(os.MkdirAll(point, 0o755))
				s.must(sys.BindMount(filepath.Join(s.Staging, s.Dir), point))
				t.Cleanup(func() { systest.UnmountPath(point, true) })
			}
			if c.bound {
				mountAt(s.Node.SubPathPoint(kubelet.SubPath{PodUID: string(s.Pod.UID), Volume: pvName, Container: "app", Index: 1}))
			}
			if c.container {
				s.runtime.of = &cri.Owner{
					ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
					Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: "/data"}},
				}
				s.startProcess(s.Point, "/data")
			}
			others := 0
			if c.shared {
				others = 1
				mountAt(s.Node.VolumePoint(kubelet.Volume{PodUID: volumetest.OtherUID, Plugin: kubelet.CSIPlugin, Name: pvName}))
			}
			s.Kill()
			survey, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}})
			if err != nil || len(survey.Broken()) != 1 {
				t.Fatalf("broken: %+v, %v", survey, err)
			}
			f := survey.Broken()[0].Findings()[0]
			if d := f.Details; f.Code != fault.DisconnectedFUSE || f.Volume != pvName || d.PersistentVolume != pvName && c.spec != "" ||
				d.SpecVolume != c.spec || d.SharedStaging != others {
				t.Errorf("found %s of volume %q: %+v", f.Code, f.Volume, d)
			}
		})
	}
}
