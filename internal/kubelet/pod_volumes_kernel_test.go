// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// TestPodVolumesAskNoForeignMount has a file system that may hang lie on each of the directories that are listed.
func TestPodVolumesAskNoForeignMount(t *testing.T) {
	for _, dir := range []string{"", volumesDir, volumesDir + "/kubernetes.io~csi"} {
		t.Run("at "+dir, func(t *testing.T) {
			node, err := Local(t.TempDir())
			kerneltest.Must(t, err)
			place := Volume{PodUID: "uid", Plugin: CSIPlugin, Name: "pvc"}
			kerneltest.Must(t, os.MkdirAll(node.VolumePoint(place), 0o755))
			if all, err := node.PodVolumes("uid"); err != nil || !cmp.Equal(all, []Volume{place}) {
				t.Fatalf("%+v, %v, want the volume", all, err)
			}
			kerneltest.FUSE(t, filepath.Join(node.PodDir("uid"), dir))
			if all, err := node.PodVolumes("uid"); !errors.Is(err, mountns.ErrMayBlock) {
				t.Errorf("%+v, %v, want %v", all, err, mountns.ErrMayBlock)
			}
		})
	}
}
