// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestMountListRepeatsNoFault has a bind be replaced, and its source change, before the next list of mounts shows the new bind.
func TestMountListRepeatsNoFault(t *testing.T) {
	f := newBindFixture(t, Observe)
	w, err := newBindWatcher(f.sentinel, f.Node, &bindMemory{notified: map[fault.Key]mount.ID{}, repairLimiters: repairLimiters{}}, false)
	must(t, err)
	defer w.close()
	pass := func() {
		t.Helper()
		must(t, w.onTick(t.Context()))
		for w.binds.queue.Len() > 0 {
			must(t, w.inspectBatch(t.Context()))
		}
		must(t, w.notify(t.Context()))
	}
	pass()
	f.expectNoMore(t)
	for range 2 {
		must(t, systest.UnmountPath(f.point, false))
		f.Bind(filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "key"), f.point)
		w.mounts.notBefore = time.Now().Add(time.Hour) // the list stays as it was
		w.binds.enqueue(w.binds.byPoint[f.point])
		pass()
		f.expectNoMore(t)
		f.updateConfigMap()
		w.binds.enqueue(w.binds.byPoint[f.point])
		pass()
		f.expect(t, "found StaleSubPath in app of web at 0")
		w.mounts.reset()
		pass()
		f.expectNoMore(t)
	}
}
