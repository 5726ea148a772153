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
	"kubediag.org/kubediag/internal/graph"
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
// Operations of its sample, in a graph that has paths. An Operation of one name is the same everywhere.
func TestSamplesRunEveryProcessor(t *testing.T) {
	t.Parallel()
	run, known := []string{}, map[string]v1.OperationSpec{}
	for _, sample := range samples.OperationSets() {
		operations := map[string]bool{"": true} // of node 0
		for _, text := range strings.Split(sample, "\n---\n") {
			var o v1.Operation
			if err := yaml.UnmarshalStrict([]byte(text), &o); err == nil && o.Kind == "Operation" {
				call, errs := o.Spec.Call()
				if len(errs) > 0 || strings.Contains(o.Name, ".") {
					t.Errorf("%s: %v", o.Name, errs)
				}
				if other, ok := known[o.Name]; ok && !cmp.Equal(other, o.Spec) {
					t.Errorf("%s: there are two:\n%s", o.Name, cmp.Diff(other, o.Spec))
				}
				known[o.Name], operations[o.Name] = o.Spec, true
				run = append(run, call.BuiltIn)
				continue
			}
			var set v1.OperationSet
			if err := yaml.UnmarshalStrict([]byte(text), &set); err != nil || set.Kind != "OperationSet" || strings.Contains(set.Name, ".") {
				t.Fatalf("%s %q: %v", set.Kind, set.Name, err)
			}
			for _, n := range set.Spec.AdjacencyList {
				if !operations[n.Operation] {
					t.Errorf("%s: there is no Operation %q", set.Name, n.Operation)
				}
			}
			if paths := pathsOf(t, set); len(paths) == 0 {
				t.Errorf("%s: it has no path", set.Name)
			}
		}
	}
	slices.Sort(run)
	if diff := cmp.Diff(builtin.Names(), slices.Compact(run)); diff != "" {
		t.Errorf("built-in processors, and those of the samples (-builtin +samples):\n%s", diff)
	}
}

// pathsOf are the names of the Operations on each path, in the order in which they are tried.
func pathsOf(t *testing.T, set v1.OperationSet) (all []string) {
	t.Helper()
	var nodes []graph.Node
	for _, n := range set.Spec.AdjacencyList {
		nodes = append(nodes, graph.Node{ID: n.ID, To: n.To, Operation: n.Operation})
	}
	g, err := graph.New(nodes)
	if err != nil {
		t.Fatalf("%s: %v", set.Name, err)
	}
	for _, path := range g.Paths(10) {
		var names []string
		for _, id := range path {
			names = append(names, g.Node(id).Operation)
		}
		all = append(all, strings.Join(names, " "))
	}
	return all
}

// TestEvictionComesLast: what can be mended in place is.
func TestEvictionComesLast(t *testing.T) {
	t.Parallel()
	documents := strings.Split(samples.VolumeHealth, "\n---\n")
	var set v1.OperationSet
	if err := yaml.UnmarshalStrict([]byte(documents[len(documents)-1]), &set); err != nil {
		t.Fatal(err)
	}
	const begin = "volume-health-collector volume-health-diagnoser "
	if diff := cmp.Diff([]string{begin + "volume-rebind-recover", begin + "pod-evict-recover"}, pathsOf(t, set)); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}
