// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package leaving

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

func TestMain(m *testing.M) {
	subprocess.Main(devholder.Job)
	kerneltest.Main(m, nil)
}

// TestMountOverTheDirectoriesOfVolumes has a file system that may hang hide the directories that are listed. The mount is named, and
// what it hides is not waited for.
func TestMountOverTheDirectoriesOfVolumes(t *testing.T) {
	node, err := kubelet.Local(t.TempDir())
	kerneltest.Must(t, err)
	volumes := filepath.Join(node.PodDir(uid), "volumes")
	kerneltest.Must(t, os.MkdirAll(filepath.Join(volumes, "kubernetes.io~csi/pvc"), 0o755))
	kerneltest.FUSE(t, volumes)
	all, err := (&Inspector{Kubelet: node}).findRemains(t.Context(), []*corev1.Pod{leavingPod()})
	kerneltest.Must(t, err)
	text := all[0].describe()
	for _, want := range []string{`of type "fuse" at "` + volumes + `"`, "directories of volumes, which were not listed"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
}
