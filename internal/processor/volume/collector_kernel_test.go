// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/processor"
)

// TestListsARealVolume healthy, dead, and with another one staged in its place.
func TestListsARealVolume(t *testing.T) {
	s := volumetest.New(t)
	s.Start()
	list := func(r processor.Request) listedVolume {
		t.Helper()
		result, err := (&Collector{Pods: s.Pods, Inspector: s.Inspector}).Run(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all := decodeVolumes(t, result)
		if len(all) != 1 {
			t.Fatalf("list %s, want the one volume", result.Values[keyVolumes])
		}
		return all[0]
	}
	for _, r := range []processor.Request{sceneRequest(s), {}} {
		v := list(r)
		if v.Code != "" || v.State != probe.Alive || v.Bindable != probe.Yes || v.Plugin != kubelet.CSIPlugin || v.Name != volumetest.Volume ||
			v.Point != s.Point || v.Root != "/"+s.Dir || v.Staging != s.Staging || v.StagingState != probe.Alive || len(v.Copies) > 0 {
			t.Errorf("healthy: %+v", v)
		}
		want := kubelet.VolumeRecord{Driver: volumetest.Driver, Handle: volumetest.Handle, PersistentVolume: volumetest.Volume}
		if v.Record == nil || *v.Record != want {
			t.Errorf("record %+v", v.Record)
		}
	}
	s.Kill()
	if v := list(sceneRequest(s)); v.Code != fault.DisconnectedFUSE || v.State != probe.Disconnected || v.StagingState != probe.Disconnected ||
		v.Errno == "" || len(v.Copies) != 1 || v.Copies[0].Container != "app" {
		t.Errorf("dead: %+v", v)
	}
	s.Remount("new")
	if v := list(sceneRequest(s)); v.Code != fault.DisconnectedFUSE || v.StagingState != probe.Alive {
		t.Errorf("staged again: %+v", v)
	}
}
