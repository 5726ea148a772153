// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package all

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/samples"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
)

func TestEveryNameHasItsProcessor(t *testing.T) {
	t.Parallel()
	r, err := New(Deps{Kubelet: &kubelet.Finder{}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(builtin.Names(), r.Names()); diff != "" {
		t.Errorf("names of package builtin, and names of the registry (-builtin +registry):\n%s", diff)
	}
}

func TestRuntimeIsThatOfTheKubelet(t *testing.T) {
	t.Parallel()
	d := Deps{Kubelet: &kubelet.Finder{Proc: t.TempDir()}}
	_, err := (&cri.Client{Socket: d.socket}).Records(t.Context(), "pod", "app")
	if !errors.Is(err, cri.ErrUnavailable) || !errors.Is(err, kubelet.ErrNotFound) {
		t.Errorf("without a kubelet: %v, want that it is not found", err)
	}
	d.Kubelet = &kubelet.Node{}
	if _, err := d.socket(t.Context()); !errors.Is(err, kubelet.ErrNoRuntime) {
		t.Errorf("without a kubelet process: %v, want ErrNoRuntime", err)
	}
}

// TestSamplesRunEveryProcessor: each built-in one is in a sample, under a path that means it, and each OperationSet names
// Operations of its sample.
func TestSamplesRunEveryProcessor(t *testing.T) {
	t.Parallel()
	var run []string
	for _, sample := range []string{samples.SubPathRemount, samples.HeldDevice, samples.IdleDevice} {
		operations := map[string]bool{"": true} // of node 0
		for _, text := range strings.Split(sample, "\n---\n") {
			var o v1.Operation
			if err := yaml.Unmarshal([]byte(text), &o); err == nil && o.Kind == "Operation" {
				call, errs := o.Spec.Call()
				if len(errs) > 0 {
					t.Errorf("%s: %v", o.Name, errs)
				}
				operations[o.Name] = true
				run = append(run, call.BuiltIn)
				continue
			}
			var set v1.OperationSet
			if err := yaml.UnmarshalStrict([]byte(text), &set); err != nil {
				t.Fatal(err)
			}
			for _, n := range set.Spec.AdjacencyList {
				if !operations[n.Operation] {
					t.Errorf("%s: there is no Operation %q", set.Name, n.Operation)
				}
			}
		}
	}
	slices.Sort(run)
	if diff := cmp.Diff(builtin.Names(), run); diff != "" {
		t.Errorf("built-in processors, and those of the samples (-builtin +samples):\n%s", diff)
	}
}
