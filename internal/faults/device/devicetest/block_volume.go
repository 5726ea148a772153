// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// NewBlockVolume has a kubelet bind a disk to a file, as a raw block volume of the pod, and make a loop device over that: the Device of the
// scene. The pod has no directory any more, and has gone long ago. file is behind the loop device.
func NewBlockVolume(t *testing.T) (s *Scene, file string) {
	t.Helper()
	s = begin(t)
	s.Image = filepath.Join(t.TempDir(), "image")
	disk := loop(t, s.Image, 4)
	file = filepath.Join(s.Node.PluginsDir(), "kubernetes.io/csi/volumeDevices", Volume, "dev", PodUID)
	s.must(errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600), os.MkdirAll(s.Node.PodsDir(), 0o755)))
	s.must(sys.BindMount(disk, file))
	t.Cleanup(func() { _ = systest.UnmountPath(file, true) })
	node := Attach(t, file)
	t.Cleanup(func() { release(t, node, file) })
	var err error
	s.Device, err = blockdev.Sys{}.Resolve(node)
	s.must(err)
	s.ComeOrGo(2 * time.Minute)
	return s, file
}

// ComeOrGo has the last change of the directory of the pods be so long ago.
func (s *Scene) ComeOrGo(ago time.Duration) {
	s.t.Helper()
	s.must(os.Chtimes(s.Node.PodsDir(), time.Now(), time.Now().Add(-ago)))
}
