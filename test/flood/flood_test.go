// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package flood

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/program"
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

const (
	// cheap is how many objects the test makes of the kind that the API server lists quickly, and costly of the others. The cheap ones alone have
	// half as much again as the agent's memory.
	cheap, costly = 160, 3
	// patience is for a Diagnosis among all others, on a busy machine: the API server needs minutes to list them.
	patience = 15 * time.Minute
)

// controlFiles are the names of what a control group has to say about memory.
type controlFiles struct{ root, limitFile, killsFile, peakFile string }

// findControlFiles returns those of the hierarchy that has memory here.
func findControlFiles(t testing.TB) controlFiles {
	t.Helper()
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if errors.Is(err, fs.ErrNotExist) { // version 1
		return controlFiles{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes"}
	}
	must(t, err)
	if !slices.Contains(strings.Fields(string(controllers)), "memory") {
		t.Skip("kernel lacks a memory controller that can be used here")
	}
	must(t, os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0))
	return controlFiles{"/sys/fs/cgroup", "memory.max", "memory.events", "memory.peak"}
}

// limited is one of our programs in a control group with the limit of its manifest.
type limited struct {
	controlFiles
	name, group string
	cmd         *exec.Cmd
	killed      int // by the kernel, so far
}

// limit makes the control group.
func limit(t testing.TB, name string, bytes int) *limited {
	t.Helper()
	p := &limited{name: name, controlFiles: findControlFiles(t)}
	p.group = filepath.Join(p.root, fmt.Sprintf("kubediag-flood-%s-%d", name, os.Getpid()))
	must(t, os.Mkdir(p.group, 0o755))
	t.Cleanup(func() {
		if p.cmd != nil {
			program.End(p.cmd)
		}
		for deadline := time.Now().Add(10 * time.Second); os.Remove(p.group) != nil && time.Now().Before(deadline); {
			time.Sleep(50 * time.Millisecond) // until the process has left
		}
	})
	must(t, os.WriteFile(filepath.Join(p.group, p.limitFile), []byte(strconv.Itoa(bytes)), 0))
	return p
}

func (p *limited) start(t testing.TB, n *fakenode.Node) {
	t.Helper()
	p.cmd = n.Launch(t, p.name, "/bin/sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(p.group, "cgroup.procs"))
}

// kills is how often the kernel has killed the program for memory.
func (p *limited) kills(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.group, p.killsFile))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, err := strconv.Atoi(strings.TrimSpace(n))
			must(t, err)
			return kills
		}
	}
	t.Fatalf("%s has no count of kills", p.group)
	return 0
}

// peak is the most memory that the control group had, in MiB; 0 where the kernel does not say.
func (p *limited) peak() float64 {
	text, _ := os.ReadFile(filepath.Join(p.group, p.peakFile))
	bytes, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return bytes / (1 << 20)
}

// restartIfKilled starts the program again if the kernel has killed it, as the kubelet does.
func (p *limited) restartIfKilled(t testing.TB, n *fakenode.Node) {
	t.Helper()
	if kills := p.kills(t); kills > p.killed {
		p.killed = kills
		program.End(p.cmd)
		p.start(t, n)
	}
}

// fill makes so many objects of the quick kind, and of each other one. The API server writes the first one. The others are copies of it in etcd, as after the restore of
// a backup: to write a thousand, the API server needs an hour of a processor, which it does not need to read them.
func fill(t testing.TB, n *fakenode.Node, cheap, costly int) {
	t.Helper()
	env := apitest.Start(t)
	must(t, client.IgnoreAlreadyExists(n.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}})))
	firsts := map[string]client.Object{}
	for name, kind := range Kinds {
		first := kind(0)
		apitest.Eventually(t, func() error { // on a busy machine, the API server may take longer than it allows itself
			return client.IgnoreAlreadyExists(n.Create(t.Context(), kind(0)))
		})
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(first), first))
		firsts[name] = first
	}
	for name, kind := range Kinds {
		began, first, each := time.Now(), firsts[name], costly
		if name == Quick {
			each = cheap
		}
		below := below(t, n, first)
		stored, err := env.ReadEtcd(t.Context(), below+first.GetName())
		must(t, err)
		for i := 1; i < each; i++ {
			name := kind(i).GetName() // as long as the first one: the text may be of protobuf
			value := bytes.ReplaceAll(stored.Value, []byte(first.GetName()), []byte(name))
			value = bytes.ReplaceAll(value, []byte(first.GetUID()), []byte(uuid.NewUUID()))
			apitest.Eventually(t, func() error { // a busy disk has etcd give up
				return env.WriteEtcd(t.Context(), apitest.Stored{Key: []byte(below + name), Value: value})
			})
		}
		last := kind(each - 1)
		apitest.Eventually(t, func() error { return n.Get(t.Context(), client.ObjectKeyFromObject(last), last) })
		if last.GetUID() == first.GetUID() || len(last.GetLabels()) != len(first.GetLabels()) {
			t.Fatalf("%T %s is no copy of the first one", last, last.GetName())
		}
		t.Logf("%d %s of %d KiB in %s", each, name, len(stored.Value)>>10, time.Since(began).Round(time.Second))
	}
}

// below is where etcd has the objects of a kind and a namespace.
func below(t testing.TB, n *fakenode.Node, o client.Object) string {
	t.Helper()
	gvk, err := n.GroupVersionKindFor(o)
	must(t, err)
	mapping, err := n.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	must(t, err)
	group := gvk.Group
	if group != v1.Group { // a kind of Kubernetes
		group = ""
	}
	return path.Join("/registry", group, mapping.Resource.Resource, o.GetNamespace()) + "/"
}

// empty deletes the objects that fill made.
func empty(t testing.TB, n *fakenode.Node) {
	for _, kind := range Kinds {
		must(t, apitest.Start(t).ClearEtcd(context.WithoutCancel(t.Context()), below(t, n, kind(0))))
	}
}

// healed breaks the subPath of the node's pod, and waits until a Diagnosis has repaired it. Meanwhile programs that are killed are started
// again.
func healed(t testing.TB, n *fakenode.Node, name string, programs ...*limited) {
	t.Helper()
	n.Break(t, len(name))
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{
		OperationSet: "subpath-remount-op-set", PodReference: &v1.PodReference{Namespace: n.Pod.Namespace, Name: n.Pod.Name},
	}}
	d.Namespace, d.Name = "default", name
	must(t, n.Create(t.Context(), d))
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		err := n.Get(t.Context(), client.ObjectKeyFromObject(d), d)
		if err != nil && !apierrors.IsTimeout(err) {
			t.Fatal(err)
		}
		if d.Ended() {
			break
		}
		for _, p := range programs {
			p.restartIfKilled(t, n)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: after %s: %+v", name, patience, d.Status)
		}
	}
	if d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("%s: outcome %q: %s", name, d.Status.Outcome, d.Status.Summary)
	}
}

// withstand floods the API server with so many objects of each kind while the agent and the manager run, and starts them again.
func withstand(t testing.TB, cheap, costly int) (agent, manager *limited) {
	n := fakenode.New(t)
	n.Build(t, "agent", "")
	n.Build(t, "manager", "")
	agent, manager = limit(t, "agent", 256<<20), limit(t, "manager", 1<<30)
	manager.start(t, n)
	agent.start(t, n)
	begun := time.Now()
	healed(t, n, "before", agent, manager)
	defer empty(t, n)
	t.Logf("%s for a Diagnosis without a flood", time.Since(begun).Round(time.Second))
	fill(t, n, cheap, costly)
	t.Logf("%s for it and %d and %d objects of each kind", time.Since(begun).Round(time.Second), cheap, costly)
	healed(t, n, "running", agent, manager)
	t.Logf("%s until a pod is healed amid them, with %.0f MiB of the agent and %.0f MiB of the manager", time.Since(begun).Round(time.Second), agent.peak(), manager.peak())
	if agent.kills(t) > 0 || manager.kills(t) > 0 {
		t.Errorf("while they run, the agent is killed %d times, the manager %d times", agent.kills(t), manager.kills(t))
	}
	for _, p := range []*limited{agent, manager} {
		program.End(p.cmd)
		p.killed = p.kills(t)
		p.start(t, n)
	}
	running := agent.killed + manager.killed
	healed(t, n, "started-again", agent, manager)
	t.Logf("%s until a pod is healed after the start", time.Since(begun).Round(time.Second))
	if agent.kills(t) > 0 {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Home, Name: v1.AgentLeaseName(fakenode.NodeName)}}
		must(t, n.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
		if lease.Labels[v1.LabelPages] != "true" {
			t.Errorf("the agent does not say that the one before was killed: labels %v", lease.Labels)
		}
	}
	if kills := agent.kills(t) + manager.kills(t) - running; kills > 1 || manager.kills(t) > 0 {
		t.Errorf("at their start, the kernel kills %d times, the manager %d times: want the agent once at most", kills, manager.kills(t))
	}
	return agent, manager
}

// TestLargestObjects: neither the agent nor the manager is killed while it runs. At its start the agent may be killed once: its successor
// lists in pages.
func TestLargestObjects(t *testing.T) {
	agent, manager := withstand(t, cheap, costly)
	t.Logf("at most, the agent had %.0f MiB and the manager %.0f MiB", agent.peak(), manager.peak())
}

var each = flag.Int("flood.each", 150, "objects of each kind that BenchmarkLargestObjects makes; the storage of the API server takes 1,500 in all")

// BenchmarkLargestObjects is TestLargestObjects with more of all kinds.
func BenchmarkLargestObjects(b *testing.B) {
	for b.Loop() {
		agent, manager := withstand(b, *each, *each)
		b.ReportMetric(agent.peak(), "MiB-agent")
		b.ReportMetric(manager.peak(), "MiB-manager")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
