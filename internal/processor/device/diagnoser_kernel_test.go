// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
)

// runDiagnoser diagnoses with the parameters.
func runDiagnoser(t *testing.T, s *devicetest.Scene, values map[string]string) processor.Result {
	t.Helper()
	result, err := (&Diagnoser{Inspector: s.Inspector}).Run(t.Context(), processor.Request{Values: values})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestFindsWhoHoldsADevice(t *testing.T) {
	s := newReleaseScene(t, "", "exporter").Scene
	for name, values := range map[string]map[string]string{
		"nothing named":     nil,
		"node":              {device.ParamDevice: s.Device.Node()},
		"name":              {device.ParamDevice: s.Device.Name},
		"number":            {device.ParamDevice: s.Device.Number.String()},
		"persistent volume": {device.ParamPersistentVolume: devicetest.Volume},
		"volume in a line":  {device.ParamMessage: `UnmountDevice failed for volume "` + devicetest.Volume + `" on node "n"`},
		"device in a line":  {device.ParamMessage: "rbd: failed to unmap device " + s.Device.Node() + ", error exit status 16"},
		"pod in a line":     {device.ParamMessage: "orphaned pod \"" + devicetest.PodUID + "\" found"},
		"path in a line":    {device.ParamMessage: "umount: " + s.Global[:strings.Index(s.Global, "kube let")] + ": target is busy; GetDeviceMountRefs check failed for volume \"" + devicetest.Volume + "\""},
		"bytes in a line":   {device.ParamMessage: bytesOf("rbd: unmap of " + s.Device.Node() + " failed: (16) Device or resource busy")},
		"two that agree":    {device.ParamDevice: s.Device.Name, device.ParamPersistentVolume: devicetest.Volume},
	} {
		t.Run(name, func(t *testing.T) {
			result := runDiagnoser(t, s, values)
			if result.NotApplicable != "" {
				t.Fatalf("not applicable: %s", result.NotApplicable)
			}
			if got := result.Values[keyDiagnoserDevice]; got != s.Device.Node() || result.Values[keyDiagnoserDevices] != `["`+got+`"]` {
				t.Errorf("device %q, devices %s", got, result.Values[keyDiagnoserDevices])
			}
			if !strings.Contains(result.Values[keyDiagnoserResult], `container "node-exporter" of pod monitoring/node-exporter-x7k2p`) {
				t.Errorf("result %q", result.Values[keyDiagnoserResult])
			}
			if !strings.Contains(result.Values[keyDiagnoserPatch], "mountPropagation: HostToContainer") {
				t.Errorf("patch %q", result.Values[keyDiagnoserPatch])
			}
			var documents []device.Document
			if err := json.Unmarshal([]byte(result.Values[keyDiagnoserHolders]), &documents); err != nil || len(documents) != 1 || len(documents[0].Holders) != 2 {
				t.Errorf("holders %s, %v", result.Values[keyDiagnoserHolders], err)
			}
			if len(result.Findings) != 2 || result.Findings[0].Code != fault.HeldDevice || result.Findings[0].Healed {
				t.Errorf("findings %+v", result.Findings)
			}
		})
	}
}

// bytesOf writes a text as kubelets print what a command has said.
func bytesOf(text string) string {
	var b strings.Builder
	for i, c := range []byte(text) {
		if i > 0 {
			b.WriteByte(' ')
		}
		n, _ := json.Marshal(c)
		b.Write(n)
	}
	return "rbd output: [" + b.String() + "]"
}

func TestSaysWhatIsNotHeld(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(s *devicetest.Scene)
		values func(s *devicetest.Scene) map[string]string
		why    []string
	}{
		"free":              {func(s *devicetest.Scene) { s.UnmountOnHost() }, byDeviceName, []string{"is free", "looked at"}},
		"mounted":           {func(*devicetest.Scene) {}, byDeviceName, []string{"in normal use", "kubelet's own mount namespace"}},
		"staged alone":      {func(s *devicetest.Scene) { _ = systest.UnmountPath(s.Mount, false) }, byDeviceName, []string{"no pod is seen to use it", "kubelet's own mount namespace for the whole node"}},
		"an open file":      {func(s *devicetest.Scene) { s.Leak(); s.UnmountOnHost() }, byDeviceName, []string{"is held by", "open file"}},
		"not there":         {func(*devicetest.Scene) {}, byParameter(device.ParamDevice, "/dev/rbd77"), []string{`there is no device "/dev/rbd77"`}},
		"no such number":    {func(*devicetest.Scene) {}, byParameter(device.ParamDevice, "4000:7"), []string{`there is no device "4000:7"`}},
		"no such volume":    {func(*devicetest.Scene) {}, byParameter(device.ParamPersistentVolume, "pvc-other"), []string{`"pvc-other"`}},
		"nothing in a line": {func(*devicetest.Scene) {}, byParameter(device.ParamMessage, "/var/lib/x: target is busy"), []string{"nothing that is left behind"}},
		"live pod": {func(s *devicetest.Scene) {
			s.Container("exporter")
			s.UnmountOnHost()
			s.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Ready: true}}
		}, byDeviceName, []string{"in normal use", "is alive"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := devicetest.New(t, "")
			s.Runtime.Of = devicetest.Exporter()
			c.set(s)
			result := runDiagnoser(t, s, c.values(s))
			for _, part := range c.why {
				if !strings.Contains(result.NotApplicable, part) {
					t.Errorf("reason %q does not say %q", result.NotApplicable, part)
				}
			}
			if len(result.Values) != 0 || len(result.Findings) != 0 {
				t.Errorf("values %v, findings %v, want none", result.Values, result.Findings)
			}
		})
	}
}

func byDeviceName(s *devicetest.Scene) map[string]string {
	return map[string]string{device.ParamDevice: s.Device.Node()}
}

func byParameter(key, value string) func(*devicetest.Scene) map[string]string {
	return func(*devicetest.Scene) map[string]string { return map[string]string{key: value} }
}

// TestDeviceOfAContainer is a fault only for who asks about that device: by itself it is as it should be.
func TestDeviceOfAContainer(t *testing.T) {
	s := devicetest.New(t, "")
	s.Container("own", s.Device.Node())
	s.Runtime.Of = devicetest.Exporter()
	s.UnmountOnHost()
	if result := runDiagnoser(t, s, byDeviceName(s)); len(result.Findings) != 1 || !strings.Contains(strings.Join(result.Findings[0].Evidence, "\n"), "left alone") {
		t.Errorf("asked about: %+v", result)
	}
	for _, f := range runDiagnoser(t, s, nil).Findings {
		if f.Mount.Device == s.Device.Number.String() {
			t.Errorf("not asked about: %+v", f)
		}
	}
}

// TestBadParameters of the diagnoser, and of the recoverer.
func TestBadParameters(t *testing.T) {
	s := devicetest.New(t, "")
	loop := t.TempDir() + "/loop"
	must(t, os.Symlink(loop, loop))
	for _, c := range []struct{ key, value string }{
		{device.ParamDevice, "/etc"}, {device.ParamDevice, loop}, {device.ParamDevice, "1:x"}, {device.ParamDevice, "a/b"},
		{device.ParamPersistentVolume, "../x"}, {device.ParamMessage, "Device or resource busy"},
		{device.ParamMessage, "rbd output: [114 98 300 58]"}, {paramReleaseDetach, "yes"},
	} {
		r := processor.Request{Values: map[string]string{c.key: c.value}}
		_, planned := (&ReleaseRecoverer{Inspector: s.Inspector}).Plan(t.Context(), r)
		_, diagnosed := (&Diagnoser{Inspector: s.Inspector}).Run(t.Context(), r)
		if c.key == paramReleaseDetach { // which the diagnoser does not read
			diagnosed = planned
		}
		for _, err := range []error{planned, diagnosed} {
			if !processor.IsStalled(err) || !strings.Contains(err.Error(), c.key) || !strings.Contains(err.Error(), c.value) {
				t.Errorf("%s=%s: %v, want a stalled error that names both", c.key, c.value, err)
			}
		}
	}
}

// TestResultsSelectNothing: what an earlier operation, or a caller, says was found is not believed.
func TestResultsSelectNothing(t *testing.T) {
	s := newReleaseScene(t, "", "exporter").Scene
	want := runDiagnoser(t, s, byDeviceName(s)).Values
	values := byDeviceName(s)
	values[keyDiagnoserDevice], values[keyDiagnoserHolders], values[keyDiagnoserResult] = "/dev/vda", `[{"device":"/dev/vda"}]`, "device /dev/vda is held"
	if diff := cmp.Diff(want[keyDiagnoserDevice], runDiagnoser(t, s, values).Values[keyDiagnoserDevice]); diff != "" {
		t.Errorf("device (-want +got):\n%s", diff)
	}
}
