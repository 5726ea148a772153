// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestMain(m *testing.M) {
	addUsers()
	devicetest.Main(m)
}

var must = kerneltest.Must

// newHeldScene is a scene whose device an exporter holds after the kubelet has unmounted it.
func newHeldScene(t *testing.T) (*devicetest.Scene, *kerneltest.Actor) {
	t.Helper()
	s := devicetest.New(t, "")
	exporter := s.Container("exporter")
	s.Runtime.Of = devicetest.Exporter()
	s.UnmountOnHost()
	return s, exporter
}

func TestCopiesInAContainer(t *testing.T) {
	s, exporter := newHeldScene(t)
	usage := s.Left()
	if usage == nil || !usage.Removable || !usage.Busy || usage.Host || !usage.IsHeld() || !usage.HasCopies() || len(usage.LiveUse) > 0 || len(usage.HolderInfos) != 2 {
		t.Fatalf("case = %+v, want one that can be released", usage)
	}
	for i, path := range []string{s.Global, s.Mount} {
		h := usage.Copies()[1-i] // the newest first
		if h.Origin.HostPath != path || h.RecordedMount.Point != "/host"+path || h.Origin.Volume != devicetest.Volume || h.PIDs[0] != exporter.PID {
			t.Errorf("held = %+v, want the copy of %q", h, path)
		}
		if h.Origin.CarrierMount == nil || h.Origin.CarrierMount.ContainerPath != "/host" || h.Origin.VolumeMount != "root" || h.In.Workload.String() != "DaemonSet node-exporter" {
			t.Errorf("carried by %+v, volumeMount %q of %q", h.Origin.CarrierMount, h.Origin.VolumeMount, h.In.Workload)
		}
	}
	want := "spec:\n  template:\n    spec:\n      containers:\n      - name: node-exporter\n        volumeMounts:\n        - mountPath: /host\n" +
		"          mountPropagation: HostToContainer\n          name: root\n"
	caveat, got, _ := strings.Cut(usage.HolderInfos[0].Origin.Patch, "start.\n")
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(caveat, "is private on this node") {
		t.Errorf("patch after %q (-want +got):\n%s", caveat, diff)
	}
	findings := usage.Findings()
	if len(findings) != 2 || findings[0].Code != fault.HeldDevice || findings[0].Pod.Name != "node-exporter-x7k2p" || findings[0].Volume != devicetest.Volume {
		t.Errorf("findings = %+v", findings)
	}
	for _, part := range []string{`container "node-exporter" of pod monitoring/node-exporter-x7k2p`, `hostPath "/" at "/host"`, "mountPropagation None", "2019-07-08"} {
		if !strings.Contains(findings[0].Holder, part) {
			t.Errorf("holder %q does not say %q", findings[0].Holder, part)
		}
	}
	d := usage.Document()
	if len(d.Holders) != 2 || d.Holders[0].Kind != devholder.Mount || d.Holders[0].MountNamespace == 0 || d.Device != s.Device.Node() {
		t.Errorf("document = %+v", d)
	}
}

// TestNotRemovable has each of the conditions be false.
func TestNotRemovable(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(s *devicetest.Scene)
		why  string
		live bool
	}{
		"the host mounts it": {func(s *devicetest.Scene) {
			s.Container("exporter")
		}, "kubelet's own mount namespace", true},
		"the pod is alive": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.UnmountOnHost()
			s.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Namespace: "default", Name: "db-0", Ready: true}}
		}, "pod default/db-0", true},
		"volume of its own": {func(s *devicetest.Scene) {
			s.Container("volume", s.Mount)
			s.UnmountOnHost()
			s.Runtime.Of.PodUID = devicetest.PodUID
			s.Runtime.Of.Mounts = []cri.Mount{{HostPath: s.Mount, ContainerPath: "/data"}}
		}, "volume of its own", true},
		"mounted by the container": {func(s *devicetest.Scene) {
			s.Container("own", s.Device.Node())
			s.UnmountOnHost()
		}, "no copy of such a mount", false},
		"no volume carries it": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.UnmountOnHost()
			s.Runtime.Of.Mounts = nil
		}, "has mounted it itself", false},
		"one volume carries it": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.UnmountOnHost()
			s.Runtime.Of.Mounts = []cri.Mount{{HostPath: filepath.Dir(s.Global), ContainerPath: "/host" + filepath.Dir(s.Global)}}
		}, "not above all volumes", false},
		"an unmount would spread": {func(s *devicetest.Scene) {
			s.Container("shared")
			s.UnmountOnHost()
		}, "spread to other mount namespaces", false},
		"in no container, elsewhere": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.UnmountOnHost()
			s.Runtime.Of = nil
		}, "another path than the kubelet had", false},
		"one of several stays": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.Container("own", s.Device.Node())
			s.UnmountOnHost()
		}, "stays", false},
		"whether the pod is alive is not known": {func(s *devicetest.Scene) {
			s.Daemon()
			s.UnmountOnHost()
			s.Runtime.Broken = cri.ErrUnavailable
		}, "it is not known whether the pod", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := devicetest.New(t, "")
			s.Runtime.Of = devicetest.Exporter()
			c.set(s)
			seen, err := s.Inspector.Inspect(t.Context(), s.Device)
			must(t, err)
			if seen.Removable || !strings.Contains(seen.Why, c.why) || (len(seen.LiveUse) > 0) != c.live {
				t.Errorf("removable %v, why %q, live %q, want that it stays: %s", seen.Removable, seen.Why, seen.LiveUse, c.why)
			}
			before := s.Mounts()
			for _, h := range seen.HolderInfos {
				if err := s.Inspector.Unmount(t.Context(), h.RecordedMount); !errors.Is(err, device.ErrNotRemovable) {
					t.Errorf("unmount of %q: %v, want ErrNotRemovable", h.Path, err)
				}
			}
			if diff := cmp.Diff(before, s.Mounts()); diff != "" {
				t.Errorf("mounts changed:\n%s", diff)
			}
			if !s.Busy() {
				t.Error("the device was released")
			}
		})
	}
}
