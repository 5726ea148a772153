// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package inventory

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/processor"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// listDevice returns what is collected about the device of the scene.
func listDevice(t *testing.T, s *devicetest.Scene) deviceDocument {
	t.Helper()
	result, err := (&DeviceCollector{Kubelet: s.Node}).Run(t.Context(), processor.Request{})
	if err != nil {
		t.Fatal(err)
	}
	var all []deviceDocument
	if err := json.Unmarshal([]byte(result.Values[keyDevices]), &all); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Name == s.Device.Name {
			return d
		}
	}
	t.Fatalf("%s is not listed: %s", s.Device.Name, result.Values[keyDevices])
	return deviceDocument{}
}

func TestListsDevices(t *testing.T) {
	s := devicetest.New(t, "")
	want := deviceDocument{
		Name: s.Device.Name, Number: s.Device.Number.String(), Kind: "loop", FileSystems: []string{"ext4"}, Busy: true, Host: true, Namespaces: 1,
	}
	if diff := cmp.Diff(want, listDevice(t, s)); diff != "" {
		t.Errorf("mounted (-want +got):\n%s", diff)
	}
	exporter := s.Container("exporter")
	want.Namespaces = 2
	if diff := cmp.Diff(want, listDevice(t, s)); diff != "" {
		t.Errorf("mounted twice (-want +got):\n%s", diff)
	}
	s.UnmountOnHost()
	want.Namespaces, want.Host, want.Abandoned = 1, false, true
	if diff := cmp.Diff(want, listDevice(t, s)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
	exporter.End()
	for deadline := time.Now().Add(5 * time.Second); s.Busy() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	want.Namespaces, want.Abandoned, want.Busy, want.FileSystems = 0, false, false, nil
	if diff := cmp.Diff(want, listDevice(t, s)); diff != "" {
		t.Errorf("free (-want +got):\n%s", diff)
	}
}
