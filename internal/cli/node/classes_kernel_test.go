// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestScanSaysWhyMountsAreThere has mounts of all classes on a node. Those that no pod is known to want are named, and the result is not
// clean; without them it is.
func TestScanSaysWhyMountsAreThere(t *testing.T) {
	s, pods := newStage(t, 1, 2)
	pod := pods[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	tmpfs := func(path string) {
		must(t, os.MkdirAll(path, 0o755))
		runTool(t, "mount", "-t", "tmpfs", "tmpfs", path)
	}
	dir := filepath.Dir(filepath.Dir(filepath.Dir(s.Volume(pod, kubelettest.ConfigMap, "configmap"))))
	tmpfs(filepath.Join(dir, "volumes/kubernetes.io~empty-dir/tmp/build"))
	tmpfs(filepath.Join(s.Root, "plugins/example.com/work"))
	tmpfs(filepath.Join(s.Root, "plugins/example.com/work"))
	tmpfs(filepath.Join(s.Root, "device-plugins"))
	file := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(file, podList(t, pods...), 0o600))

	want := &mountstate.Classes{Mounts: 6, Wanted: 2, Inside: 1, Drivers: 1, Kubelet: 1, Hidden: 1}
	r, err := scanJSON(t, nil, "--kubelet-root", s.Root, "--pods", file)
	if diff := cmp.Diff(want, r.Looked.Classes); diff != "" || err != nil || !r.Verdict.Clean {
		t.Errorf("error %v, %+v:\n%s", err, r.Verdict, diff)
	}

	tmpfs(filepath.Join(dir, "data"))
	tmpfs(filepath.Join(dir, "volumes/kubernetes.io~secret/none"))
	tmpfs(filepath.Join(dir, "volumes/kubernetes.io~secret/nor-this"))
	tmpfs(filepath.Join(s.Root, "plugins/kubernetes.io/csi/example.com/1/globalmount"))
	want.Mounts, want.Unknown = want.Mounts+4, 4
	r, err = scanJSON(t, nil, "--kubelet-root", s.Root, "--pods", file)
	if diff := cmp.Diff(want, r.Looked.Classes); diff != "" || !errors.Is(err, errUnjudged) || r.Verdict.Clean || r.Verdict.NotJudged != 3 {
		t.Errorf("error %v, %+v:\n%s", err, r.Verdict, diff)
	}
	text := ""
	for _, place := range r.Looked.Unproven {
		text += place.String() + "\n"
	}
	for _, part := range []string{
		"where the kubelet mounts nothing", "the spec of its pod has no such volume, and 1 more like it", "no pod of this node is known to have it",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in %s", part, text)
		}
	}

	// Another pod's volume by the kubelet's record explains the staging path, though its own mount is of another file system.
	volume := filepath.Join(s.Root, "pods/00000000-0000-0000-0000-00000000000f/volumes/kubernetes.io~csi/pvc-1")
	tmpfs(filepath.Join(volume, "mount"))
	must(t, os.WriteFile(filepath.Join(volume, "vol_data.json"), []byte(`{"driverName":"example.com","volumeHandle":"h","specVolID":"pvc-1"}`), 0o600))
	tmpfs(s.Node.StagingPoints("example.com", "h", "")[0])
	want.Mounts, want.Wanted = want.Mounts+2, want.Wanted+2
	r, _ = scanJSON(t, nil, "--kubelet-root", s.Root, "--pods", file)
	if diff := cmp.Diff(want, r.Looked.Classes); diff != "" {
		t.Error(diff)
	}
}
