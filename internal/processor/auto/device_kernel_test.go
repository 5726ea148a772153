// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package auto_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

func TestMain(m *testing.M) {
	subprocess.Main(registry.Jobs()...)
	kerneltest.Main(m, devicetest.Roles)
}

// runDeviceDiagnosis runs a Diagnosis of a device that names no OperationSet.
func runDeviceDiagnosis(t *testing.T, s *devicetest.Scene, spec v1.DiagnosisSpec) *v1.Diagnosis {
	t.Helper()
	spec.Parameters = map[string]string{v1.ParamDevice: s.Device.Node()}
	return runAuto(t, s, nil, spec)
}

// runAuto runs a Diagnosis that names no OperationSet.
func runAuto(t *testing.T, s *devicetest.Scene, claims device.Claims, spec v1.DiagnosisSpec) *v1.Diagnosis {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	registry, err := registry.New(registry.Deps{Pods: s.Pods, Kubelet: s.Node, Owners: s.Runtime, Devices: &device.Inspector{
		Kubelet: s.Node, Finder: &devholder.Finder{Runner: &subprocess.Runner{}}, Runtime: s.Runtime, Pods: s.Pods, Claims: claims, Runner: &subprocess.Runner{},
	}})
	must(err)
	var memory store.Memory
	e, err := pipeline.New(pipeline.Options{Node: kubelettest.NodeName, DataRoot: t.TempDir(), Registry: registry, Store: &memory})
	must(err)
	defer func() { _ = e.Close() }()
	d := &v1.Diagnosis{Spec: spec}
	d.APIVersion, d.Kind, d.Namespace, d.Name = v1.GroupVersion.String(), "Diagnosis", "default", "d"
	d.Spec.NodeName = kubelettest.NodeName
	text, err := store.YAML(d)
	must(err)
	must(memory.Load(strings.NewReader(operations.Auto)))
	must(memory.Load(bytes.NewReader(text)))
	d, err = memory.Diagnosis("default", "d")
	must(err)
	done, err := e.Run(t.Context(), d)
	must(err)
	return done
}

// TestAutoReleasesADevice that is named: a plan first, which changes nothing, and then just that.
func TestAutoReleasesADevice(t *testing.T) {
	s := devicetest.New(t, "")
	exporter := s.Container("exporter")
	s.Runtime.Of = devicetest.Exporter()
	if d := runDeviceDiagnosis(t, s, v1.DiagnosisSpec{}); d.Status.Outcome != v1.OutcomeNoFault || d.Status.Phase != v1.DiagnosisSucceeded {
		t.Fatalf("while it is in use: %+v", d.Status)
	}
	s.UnmountOnHost()
	before := s.MountsOf(exporter.PID)
	planned := runDeviceDiagnosis(t, s, v1.DiagnosisSpec{Mode: v1.ModePlan}).Status
	if planned.Outcome != v1.OutcomePlanned || planned.Faults[0].Code != "HeldDevice" || !strings.HasPrefix(planned.Target, "device "+s.Device.Node()) {
		t.Fatalf("plan: %+v", planned)
	}
	if diff := cmp.Diff(before, s.MountsOf(exporter.PID)); diff != "" || !s.Busy() {
		t.Errorf("planning has changed mounts of the holder (-before +after):\n%s", diff)
	}
	done := runDeviceDiagnosis(t, s, v1.DiagnosisSpec{PlanHash: planned.Plan.Hash}).Status
	if done.Outcome != v1.OutcomeHealed || s.Busy() {
		t.Errorf("release: %+v, busy: %v", done, s.Busy())
	}
}
