// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/processor"
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

// TestAutoRepairsAllThatIsRepaired: each fault that has an Operation has a remedy in the set for all faults, without a pod being named.
func TestAutoRepairsAllThatIsRepaired(t *testing.T) {
	t.Parallel()
	repaired := map[fault.Code]bool{}
	for _, family := range (parts{}).families(fault.Known()) {
		for _, remedy := range family.Remedies {
			for _, code := range remedy.Codes {
				repaired[code] = repaired[code] || !remedy.NamedPodOnly
			}
		}
	}
	for _, entry := range fault.Known() {
		if entry.Operation != "" && !repaired[entry.Code] {
			t.Errorf("%s is repaired by operation %s, and not by families of package registry", entry.Code, entry.Operation)
		}
	}
}

func TestEveryParameterIsListed(t *testing.T) {
	t.Parallel()
	r, err := New(Deps{Kubelet: &kubelet.Finder{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range r.Names() {
		step, _ := r.Lookup(name)
		var want []string
		for _, known := range []any{step.Processor, step.Family, step.Planner} {
			if p, ok := known.(processor.Parameterized); ok {
				want = p.Parameters()
			}
		}
		if diff := cmp.Diff(want, builtin.Parameters(name)); diff != "" {
			t.Errorf("%s: parameters of the processor, and of package builtin (-processor +builtin):\n%s", name, diff)
		}
	}
}

// parameters of the built-in processors; the others take none.
var parameters = map[string][]string{
	builtin.HeldDeviceDiagnoser: {
		"param.diagnoser.system.held_device.device", "param.diagnoser.system.held_device.message",
		"param.diagnoser.system.held_device.persistent_volume",
	},
	builtin.HeldDeviceRecover: {
		"param.diagnoser.system.held_device.device", "param.diagnoser.system.held_device.message",
		"param.diagnoser.system.held_device.persistent_volume", "param.recover.system.held_device.detach",
	},
	builtin.IdleDeviceRecover:  {"param.recover.system.idle_device.limit", "param.recover.system.idle_device.minimum_idle_seconds"},
	builtin.NodeMountRecover:   {"param.recover.kubernetes.node_mount.path"},
	builtin.OrphanedPodRecover: {"param.recover.kubernetes.orphaned_pods.limit", "param.recover.kubernetes.orphaned_pods.uid"},
	builtin.PodEvictRecover:    {"param.recover.kubernetes.pod_evict.allowed", "param.recover.kubernetes.pod_evict.daemon_set", "param.recover.kubernetes.pod_evict.wait_seconds"},
	builtin.SubpathRemountRecover: {
		"param.recover.kubernetes.subpath_remount.bring_forward", "param.recover.kubernetes.subpath_remount.wait_seconds",
	},
	builtin.VolumeHealthCollector: {"param.diagnoser.kubernetes.volume_health.volume"},
	builtin.VolumeHealthDiagnoser: {"param.diagnoser.kubernetes.volume_health.volume"},
	builtin.VolumeRebindRecover: {
		"param.diagnoser.kubernetes.volume_health.volume", "param.recover.kubernetes.volume_rebind.abort",
		"param.recover.kubernetes.volume_rebind.bring_forward", "param.recover.kubernetes.volume_rebind.wait_seconds",
	},
}

func init() {
	var diagnosed, recovered []string
	for name, keys := range parameters {
		switch name {
		case builtin.HeldDeviceDiagnoser, builtin.VolumeHealthDiagnoser:
			diagnosed, recovered = append(diagnosed, keys...), append(recovered, keys...)
		case builtin.IdleDeviceRecover:
		default:
			recovered = append(recovered, keys...)
		}
	}
	for name, keys := range map[string][]string{builtin.AutoDiagnoser: diagnosed, builtin.AutoRecover: recovered} {
		slices.Sort(keys)
		parameters[name] = slices.Compact(keys)
	}
}

// TestParametersWithATypingError are refused by those whose they would be, and are none of the others' business.
func TestParametersWithATypingError(t *testing.T) {
	t.Parallel()
	r, err := New(Deps{Kubelet: &kubelet.Finder{}})
	if err != nil {
		t.Fatal(err)
	}
	prefix := func(key string) string { return key[:strings.LastIndex(key, ".")+1] }
	for _, name := range r.Names() {
		step, _ := r.Lookup(name)
		for _, others := range parameters {
			for _, key := range others {
				own := slices.Contains(parameters[name], key)
				related := slices.ContainsFunc(parameters[name], func(k string) bool { return prefix(k) == prefix(key) })
				if err := step.CheckParameters(map[string]string{key: "x"}); (err == nil) != (own || !related) {
					t.Errorf("%s, %s: %v", name, key, err)
				}
				err := step.CheckParameters(map[string]string{key: "x", key + "s": "typo"})
				if processor.IsStalled(err) != related || err != nil && !related {
					t.Errorf("%s, %ss: %v, want it refused: %v", name, key, err, related)
				}
				for _, part := range append([]string{key + "s", name}, parameters[name]...) {
					if related && (err == nil || !strings.Contains(err.Error(), part)) {
						t.Errorf("%s, %ss: %v does not name %s", name, key, err, part)
					}
				}
			}
		}
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

// operationSets reads all samples of Operations with an OperationSet.
func operationSets(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../../config/operations/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "kind: OperationSet\n") {
			found = append(found, string(text))
		}
	}
	return found
}

// TestSamplesRunEveryProcessor: each built-in one is in a sample, under a path that means it, and each OperationSet names
// Operations of its sample, in a graph that has paths. An Operation of one name is the same everywhere.
func TestSamplesRunEveryProcessor(t *testing.T) {
	t.Parallel()
	run, known := []string{}, map[string]v1.OperationSpec{}
	for _, sample := range operationSets(t) {
		operations := map[string]bool{"": true} // of node 0
		for document, err := range manifests.Documents([]byte(sample)) {
			if err != nil {
				t.Fatal(err)
			}
			text := document.Text
			var o v1.Operation
			if err := yaml.UnmarshalStrict(text, &o); err == nil && o.Kind == "Operation" {
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
			if err := yaml.UnmarshalStrict(text, &set); err != nil || set.Kind != "OperationSet" || strings.Contains(set.Name, ".") {
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

// TestEvictionComesLast: a volume that can be repaired in place is.
func TestEvictionComesLast(t *testing.T) {
	t.Parallel()
	sets, err := manifests.Read[v1.OperationSet](operations.Files, "OperationSet")
	if err != nil {
		t.Fatal(err)
	}
	set := sets[slices.IndexFunc(sets, func(s v1.OperationSet) bool { return s.Name == "volume-health-op-set" })]
	const begin = "volume-health-collector volume-health-diagnoser "
	if diff := cmp.Diff([]string{begin + "volume-rebind-recover", begin + "pod-evict-recover"}, pathsOf(t, set)); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}
