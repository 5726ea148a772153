// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
)

// TestImpactOfARealDaemon: it is known by its process and its pod while it serves, and a mount that lies on the volume is seen. Looking
// changes no mount.
func TestImpactOfARealDaemon(t *testing.T) {
	kerneltest.Needs(t, sys.HasFUSEServer)
	s := volumetest.New(t)
	s.Start()
	before := s.Mounts()
	look := func() fault.MountImpact {
		t.Helper()
		d := &ImpactDiagnoser{Inspector: s.Inspector, Pods: s, Owners: s}
		result, err := d.Run(t.Context(), processor.Request{})
		if err != nil {
			t.Fatal(err)
		}
		var list []fault.MountImpact
		if err := json.Unmarshal([]byte(result.Values[fault.KeyMountImpact]), &list); err != nil || len(list) != 1 {
			t.Fatalf("%v, want one volume: %s", err, result.Values[fault.KeyMountImpact])
		}
		return list[0]
	}
	m := look()
	want := fault.MountImpact{
		Pod: fault.Pod{Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: string(s.Pod.UID)}, Volume: volumetest.Volume, SpecVolume: "claim", Point: s.Point,
		FSType: "fuse." + volumetest.Name, Driver: volumetest.Driver, ServedBy: fault.ServedByDaemon, Daemons: m.Daemons, Returns: fault.ReturnRepair,
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("alive (-want +got):\n%s", diff)
	}
	if len(m.Daemons) != 1 || m.Daemons[0].PID == 0 || m.Daemons[0].Command == "" || m.Daemons[0].Container != "app" || m.Daemons[0].Pod.UID != string(s.Pod.UID) {
		t.Errorf("daemons %+v", m.Daemons)
	}
	if diff := cmp.Diff(before, s.Mounts()); diff != "" {
		t.Errorf("looking has changed mounts (-before +after):\n%s", diff)
	}

	upon := filepath.Join(s.Point, "upon")
	if err := os.Mkdir(upon, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sys.NewMount("upon", upon, "tmpfs", ""); err != nil {
		t.Fatal(err)
	}
	if m := look(); !strings.Contains(m.UnmountRefusal, "a mount lies on it") {
		t.Errorf("with a mount on it: %+v", m)
	}
	if err := systest.UnmountPath(upon, true); err != nil {
		t.Fatal(err)
	}

	s.Kill()
	if m := look(); len(m.Daemons) != 0 || m.ServedBy != fault.ServedByDaemon || m.DaemonUnknown == "" || m.UnmountRefusal != "" {
		t.Errorf("dead: %+v", m)
	}
}
