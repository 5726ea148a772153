// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package searches

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) {
	subprocess.Main(devholder.Job, device.Job, probe.Job)
	kerneltest.Main(m, nil)
}

// TestLookCountsStrays: a mount in the directory of a pod that no pod wants is unknown to all searches together, as it is to a scan.
func TestLookCountsStrays(t *testing.T) {
	of := testNode(t)
	of.Devices = &device.Inspector{Kubelet: of.Kubelet, Finder: &devholder.Finder{}}
	stray := filepath.Join(of.Kubelet.PodDir(uid), "stray")
	kerneltest.Must(t, os.Mkdir(stray, 0o755))
	kerneltest.Must(t, mount.Tmpfs(stray, 1<<20))
	t.Cleanup(func() { _ = systest.UnmountPath(stray, true) })
	sum, err := Look(t.Context(), of)
	kerneltest.Must(t, err)
	if !slices.ContainsFunc(sum.Unknown.Places, func(p mountstate.Place) bool { return p.Point == stray && p.Pod.UID == uid && p.Reason != "" }) {
		t.Errorf("not judged: %q", sum.Unknown.Sentences())
	}
}
