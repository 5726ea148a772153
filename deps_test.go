// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "kubediag.org/kubediag"

// reach is a rule about what a package may reach through its imports and theirs. A name that begins with ./ is a
// package of this module; /... at the end means the package and all below it.
type reach struct {
	from   string
	never  []string // what must not be reached
	within []string // where there are any: all of this module that may be reached
	alone  bool     // packages that from names must not reach each other
	why    string
}

var (
	node       = []string{"./internal/linux/...", "./internal/kubelet/...", "./internal/faults/...", "./internal/cri/...", "./internal/pipeline/...", "./internal/agent/...", "./internal/builtin/registry"}
	client     = []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/..."}
	loggers    = []string{"log", "log/slog", "github.com/go-logr/...", "k8s.io/klog/..."}
	processors = []string{"./internal/linux/...", "./internal/share", "./internal/kubelet/...", "./internal/faults", "./internal/podinfo", "./internal/cri/...", "./internal/fault", "./internal/jsonparts", "./internal/kubelog", "./internal/mountstate", "./internal/printable", "./internal/processor", "./internal/processor/podref", "./internal/processor/restart", "./internal/redact", "./internal/repair"}
)

var reaches = []reach{
	{
		from:  "./internal/linux/...",
		never: slices.Concat(loggers, []string{"k8s.io/...", "sigs.k8s.io/...", "github.com/prometheus/...", "os/exec", "./internal/processor/..."}),
		why:   "the mount layer is usable alone, and in a process that has entered another namespace",
	},
	{
		from: "./api/...", within: []string{"./api/..."},
		never: slices.Concat(client, []string{"k8s.io/api/..."}),
		why:   "a client of the API takes apimachinery and nothing else with it",
	},
	{
		from: "./internal/graph", within: []string{"./internal/graph"}, never: []string{"k8s.io/...", "sigs.k8s.io/..."},
		why: "the manager and the agent must agree on the order of paths, and nothing else of either belongs to it",
	},
	{
		from: "./internal/fault", within: []string{"./internal/fault"}, never: []string{"k8s.io/...", "sigs.k8s.io/..."},
		why: "every side speaks of faults, also those that know no Kubernetes",
	},
	{
		from: "./internal/mountstate", within: []string{"./internal/mountstate", "./internal/fault", "./internal/kubelet", "./internal/podinfo", "./internal/linux/...", "./internal/share"}, never: client,
		why: "all families of faults fill its types, and all programs of a node print them; the wishes of pods come from their specs and the kubelet's paths",
	},
	{
		from: "./internal/share", within: []string{"./internal/share"}, never: []string{"k8s.io/...", "sigs.k8s.io/..."},
		why: "all that is bounded is divided by it, on nodes and in the manager, and it knows no finding and no action",
	},
	{
		from: "./internal/podinfo", within: []string{"./internal/podinfo", "./internal/kubelet", "./internal/fault", "./internal/linux/...", "./internal/share"},
		why: "all families of faults use what a pod says about itself, which knows no fault",
	},
	{
		from: "./internal/kubelet/...", never: []string{"./internal/faults/...", "./internal/processor/...", "./internal/pipeline/..."},
		why: "the kubelet's own paths, records and habits know no fault",
	},
	{
		from: "./internal/faults/...", never: []string{"./internal/processor/...", "./internal/pipeline/..."},
		why: "a judge of the node hands out plain data of package fault: what runs it is built on it, never the other way round",
	},
	judge("subpath"), judge("volume"), judge("device"), judge("orphan"), judge("fusedaemon"), judge("leaving"),
	family("inventory"), family("subpath", "subpath"), family("volume", "volume", "fusedaemon"), family("device", "device"),
	family("orphan", "orphan"), family("external"),
	{
		from: "./internal/pipeline/...", never: client,
		within: []string{"./internal/pipeline/...", "./api/...", "./internal/graph", "./internal/jsonparts", "./internal/processor", "./internal/processor/processortest", "./internal/fault", "./internal/linux/bounded", "./internal/linux/calls", "./internal/printable", "./internal/redact", "./internal/repair", "./internal/share"},
		why:    "the API's types are plain data; the pipeline is tested without a node, a network or a cluster, and runs without an API server",
	},
	{
		from: "./internal/repair/...", never: client,
		within: []string{"./internal/repair/...", "./api/...", "./internal/processor", "./internal/fault", "./internal/linux/bounded", "./internal/linux/calls", "./internal/share"},
		why:    "what carries repairs out is tested without a node: families, rules and journals are handed to it",
	},
	{
		from: "./internal/ui", within: []string{"./internal/ui", "./internal/fault", "./internal/printable", "./internal/cli/terminal", "./docs/runbook"},
		never: slices.Concat(client, []string{"k8s.io/..."}),
		why:   "a page is made of plain texts, on a node without an API server as well as from a cluster",
	},
	{
		from: "./internal/cli/demo", never: client,
		why: "the demo needs no cluster",
	},
	{
		from: "./internal/cli/node/...", never: client,
		why: "the verbs of a node work while the API server is dead",
	},
	{
		from:  "./cmd/kubectl-kubediag",
		never: []string{"./internal/linux/sys", "./internal/agent/...", "./internal/pipeline/...", "./internal/cli/node"},
		why:   "the verbs of a cluster ask the API server from any system, and leave the node to its agent",
	},
	{
		from: "./cmd/kubediag", never: slices.Concat(client, []string{"k8s.io/cli-runtime/..."}),
		why: "the verbs of a node work while the API server is dead, and start in milliseconds",
	},
	{
		from: "./internal/kubeclient", within: []string{"./internal/kubeclient", "./internal/printable", "./api/..."},
		why: "the manager and the agent share their way to the API server, and nothing else of either",
	},
	{
		from: "./internal/controller/...", never: node, alone: true,
		why: "the manager has no rights on a node, and one kind's reconciler can be read without the others",
	},
	{
		from: "./internal/trigger/...", never: slices.Concat(node, []string{"./internal/controller/..."}),
		why: "a source of signals knows neither nodes nor reconcilers",
	},
	{
		from: "./...", never: []string{"./cmd/..."},
		why: "a main package builds a command and holds nothing of use to others",
	},
}

// judge is the rule for the package that judges and repairs one family of faults.
func judge(name string) reach {
	own := "./internal/faults/" + name
	return reach{
		from: own + "/...", why: "a family of faults can be read without the others",
		within: []string{
			own + "/...", "./internal/faults", "./internal/fault", "./internal/podinfo", "./internal/kubelet/...", "./internal/cri/...",
			"./internal/jsonparts", "./internal/kubelog", "./internal/linux/...", "./internal/mountstate", "./internal/printable", "./internal/share",
		},
	}
}

// family is the rule for the processors of one family of faults, and of its judges.
func family(name string, judges ...string) reach {
	within := append([]string{"./internal/processor/" + name}, processors...)
	for _, j := range judges {
		within = append(within, "./internal/faults/"+j)
	}
	return reach{
		from: within[0], within: within, never: client, why: "a processor is handed what it needs, and knows no processor of another family",
	}
}

// door names the only packages that may import something themselves.
type door struct {
	to    []string
	from  []string
	tests bool // whether tests are free
	why   string
}

var doors = []door{
	{
		to:   []string{"golang.org/x/sys/unix", "syscall"},
		from: []string{"./internal/linux/sys", "./internal/linux/sys/systest", "./internal/cli/terminal", "./cmd/...", "./test/..."},
		why:  "system calls are typed, and descriptors owned, in one place; the plugin flushes terminals of other systems; only a main package names signals, and tests from outside share no code with what they test",
	},
	{
		to:   []string{"os/exec"},
		from: []string{"./internal/processor/external", "./internal/cli/demo", "./internal/cli/browser", "./hack/...", "./test/..."}, tests: true,
		why: "nothing on a node is done by running programs: scripts are the user's, the demo starts itself again, and a browser is on a person's own machine",
	},
	{
		to:   []string{"net/http"},
		from: []string{"./internal/agent", "./internal/processor/external", "./internal/bearer", "./internal/kubeclient", "./internal/scrape", "./internal/trigger/alertmanager", "./internal/cli/...", "./test/..."}, tests: true,
		why: "few packages talk to a network; the pipeline is handed what calls a server",
	},
	{
		to:   []string{"unsafe"},
		from: []string{"./internal/linux/sys"}, tests: true,
		why: "memory is shared with the kernel in one place",
	},
	{
		to:   []string{"github.com/stretchr/testify/...", "github.com/onsi/..."},
		from: []string{},
		why:  "tests are written with the standard library and go-cmp",
	},
}

func TestNobodyReachesWhatTheyMustNot(t *testing.T) {
	t.Parallel()
	imports := importGraph(t)
	own := slices.Sorted(maps.Keys(imports))
	own = slices.DeleteFunc(own, func(p string) bool { return !matches("./...", p) })
	for _, rule := range reaches {
		from := slices.DeleteFunc(slices.Clone(own), func(p string) bool { return !matches(rule.from, p) })
		if len(from) == 0 {
			t.Errorf("%s: a rule speaks of it, but there is no such package", rule.from)
		}
		for _, p := range from {
			for reached, chain := range closure(imports, p) {
				if rule.forbids(p, reached) {
					t.Errorf("%s reaches %s: %s\n\t%s", p, reached, rule.why, chain)
				}
			}
		}
	}
}

// TestPluginIsForEverySystem that people work on: each package that it needs has files for it. make vet compiles them.
func TestPluginIsForEverySystem(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"darwin/arm64", "windows/amd64"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/kubectl-kubediag")
		goos, goarch, _ := strings.Cut(system, "/")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}

func (r reach) forbids(from, to string) bool {
	switch {
	case from == to:
		return false
	case slices.ContainsFunc(r.never, func(p string) bool { return matches(p, to) }):
		return true
	case r.alone && matches(r.from, to) && !strings.HasPrefix(from, to+"/") && !strings.HasPrefix(to, from+"/"):
		return true
	}
	return len(r.within) > 0 && matches("./...", to) &&
		!slices.ContainsFunc(r.within, func(p string) bool { return matches(p, to) })
}

func TestDoorsAreUsedByTheirOwners(t *testing.T) {
	t.Parallel()
	for _, src := range allSources(t) {
		for _, spec := range src.file.Imports {
			to, _ := strconv.Unquote(spec.Path.Value)
			for _, d := range doors {
				if d.shut(src, to) {
					t.Errorf("%s:%d imports %s: %s", src.name, line(spec), to, d.why)
				}
			}
		}
	}
}

func (d door) shut(src source, to string) bool {
	pkg := path.Join(module, src.dir())
	return slices.ContainsFunc(d.to, func(p string) bool { return matches(p, to) }) &&
		!slices.ContainsFunc(d.from, func(p string) bool { return matches(p, pkg) }) &&
		!(d.tests && src.test())
}

// importGraph lists what every package of this module, and every package that these need, imports.
func importGraph(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing packages: %v\n%s", err, stderr.String())
	}
	imports := map[string][]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return imports
		} else if err != nil {
			t.Fatal(err)
		}
		imports[p.ImportPath] = p.Imports
	}
}

// closure returns all packages that from reaches, each with a shortest way to it.
func closure(imports map[string][]string, from string) map[string]string {
	ways := map[string]string{from: from}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, p := range imports[next[0]] {
			if _, seen := ways[p]; !seen {
				ways[p] = ways[next[0]] + " -> " + p
				next = append(next, p)
			}
		}
	}
	return ways
}

// matches compares an import path with a name in the manner of reach.
func matches(pattern, pkg string) bool {
	if rest, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = module + "/" + rest
	}
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == dir || strings.HasPrefix(pkg, dir+"/")
	}
	return pkg == pattern
}
