// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

// share is a set of specs that run in a process.
type share struct {
	name  string
	focus string // a pattern of the specs' names
	count int    // of specs
}

// shares run side by side. With alone, they are the 81 conformance specs of [sig-storage] about ConfigMaps, Secrets, projected volumes, the downward API, emptyDirs and subPaths,
// and those of hostPaths, of subPaths and of ephemeral volumes that are no part of conformance and need no other image.
var shares = []share{
	{"ConfigMap and Secret", `\[sig-storage\] (ConfigMap|Secrets) .*\[Conformance\]`, 20},
	{"downward API and subPath", `\[sig-storage\] (Downward API|Subpath) .*\[Conformance\]`, 16},
	{"emptyDir", `\[sig-storage\] EmptyDir volumes .*\[Conformance\]`, 15},
	{"projected", `\[sig-storage\] Projected .*\[Conformance\]`, 28},
	{"hostPath and ephemeral", `\[sig-storage\] (HostPath .*\[NodeConformance\]|Ephemeralstorage |Subpath Container restart)`, 6},
	{"subPath of hostPath", inTree("hostPath"), 7},
	{"subPath of emptyDir", inTree("emptydir"), 7},
}

// alone is run after the others: one of its specs starts many pods with fifty volumes each, and is to run by itself.
var alone = share{"emptyDir wrapper", `\[sig-storage\] EmptyDir wrapper .*\[Conformance\]`, 2}

// skipped are specs that stop the kubelet, and one that wants the sticky bit on the node's /tmp.
const skipped = `\[Disruptive\]|HostPath should give a volume the correct mode`

// inTree matches the quick specs of subPaths on inline volumes of a driver.
func inTree(driver string) string {
	return `\[Driver: ` + driver + `\] \[Testpattern: Inline-volume \(default fs\)\] subPath should [^\[]*(\[LinuxOnly\])?$`
}

// policy allows all repairs.
const policy = `
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryPolicy
metadata: {name: everything}
spec: {mode: Automatic}
`

// BenchmarkConformance fails if a spec fails, or if anything was repaired.
func BenchmarkConformance(b *testing.B) {
	tests, err := cluster.EndToEndTests(b.Context())
	must(b, err)
	e := install.Start(b, cluster.Options{Kubelet: cluster.Kubernetes136, SyncFrequency: time.Second})
	must(b, e.LoadEndToEndImages(b.Context()))
	e.Kubectl(b, policy, "apply", "-f", "-")
	n := &node{Env: e, tests: tests}
	for b.Loop() {
		n.run(b)
	}
	b.ReportMetric(float64(n.passed), "specs")
	b.ReportMetric(float64(n.failed), "specs-failed")
	b.ReportMetric(float64(n.repairs(b)), "repairs")
	b.ReportMetric(float64(len(n.reported)), "faults-reported")
	n.checkClean(b)
}

// node is where the specs run.
type node struct {
	*install.Env
	tests string // the program
	dir   string // of the reports

	mu             sync.Mutex
	passed, failed int
	reported       map[string]bool // faults that were shown while the specs ran
}

// run runs all specs once.
func (n *node) run(b *testing.B) {
	n.dir, n.reported = b.TempDir(), map[string]bool{}
	ctx, cancel := context.WithCancel(b.Context())
	var watching, all sync.WaitGroup
	watching.Go(func() { n.watch(ctx) })
	for i, s := range shares {
		all.Go(func() { n.runShare(b, i, s) })
	}
	all.Wait()
	n.runShare(b, len(shares), alone)
	cancel()
	watching.Wait()
	for _, text := range slices.Sorted(maps.Keys(n.reported)) {
		b.Logf("reported meanwhile: %s", text)
	}
}

// runShare runs some of the specs and counts them.
func (n *node) runShare(b *testing.B, number int, s share) {
	report := filepath.Join(n.dir, fmt.Sprintf("%d.json", number))
	began := time.Now()
	cmd := exec.CommandContext(b.Context(), n.tests, "--kubeconfig="+n.Kubeconfig(), "--provider=skeleton", "--num-nodes=1", "--disable-log-dump",
		"--ginkgo.focus="+s.focus, "--ginkgo.skip="+skipped, "--ginkgo.timeout=1h", "--ginkgo.no-color", "--ginkgo.json-report="+report)
	cmd.Env = append(os.Environ(), "NO_PROXY=*")
	out, err := cmd.CombinedOutput()
	text, readErr := os.ReadFile(report)
	if readErr != nil {
		b.Errorf("%s: %v, no report: %s", s.name, err, tail(out))
		return
	}
	passed, failures, err := readReport(text)
	if err != nil {
		b.Errorf("%s: %v", s.name, err)
	}
	for _, f := range failures {
		b.Errorf("%s: %s", s.name, f)
	}
	if ran := passed + len(failures); ran != s.count {
		b.Errorf("%s: %d specs ran, want %d", s.name, ran, s.count)
	}
	b.Logf("%s: %d specs passed, %d failed, in %.0f s", s.name, passed, len(failures), time.Since(began).Seconds())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passed, n.failed = n.passed+passed, n.failed+len(failures)
}

// readReport counts the specs of a report of Ginkgo that have passed, and describes those that have failed.
func readReport(text []byte) (passed int, failures []string, err error) {
	var suites []struct {
		SpecReports []struct {
			LeafNodeType, State, LeafNodeText string
			ContainerHierarchyTexts           []string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		return 0, nil, fmt.Errorf("read report: %w", err)
	}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			switch {
			case s.State == "skipped" || s.State == "pending":
			case s.State != "passed":
				failures = append(failures, fmt.Sprintf("%s %s: %s: %s", strings.Join(s.ContainerHierarchyTexts, " "), s.LeafNodeText, s.State, s.Failure.Message))
			case s.LeafNodeType == "It":
				passed++
			}
		}
	}
	return passed, failures, nil
}

// watch collects the faults that the agent shows, until ctx is done.
func (n *node) watch(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, f := range n.faults(ctx) {
			n.reported[fmt.Sprintf("%s of pod %s: %s; %q", f.Status.Code, f.Status.Target, f.Status.Impact, f.Status.Evidence)] = true
		}
	}
}

// faults are those that the agent shows.
func (n *node) faults(ctx context.Context) []v1.MountFault {
	var list v1.MountFaultList
	if err := n.List(ctx, &list); err != nil {
		return nil
	}
	return list.Items
}

// repairs counts the repairs that have begun: each has a record.
func (n *node) repairs(b *testing.B) (count int) {
	var all v1.DiagnosisList
	must(b, n.List(b.Context(), &all))
	for _, d := range all.Items {
		b.Errorf("Diagnosis %s/%s, mode %q: %s", d.Namespace, d.Name, d.Spec.Mode, d.Status.Summary)
		count++
	}
	return count
}

// checkClean fails if a fault is left once all pods are gone.
func (n *node) checkClean(b *testing.B) {
	var left []v1.MountFault
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if left = n.faults(b.Context()); len(left) == 0 {
			break
		}
	}
	for _, f := range left {
		b.Errorf("left: %s: %q", f.Name, f.Status.Evidence)
	}
	scan := exec.CommandContext(b.Context(), n.Build(b, "kubediag"), "scan", fmt.Sprintf("--kubelet-pid=%d", n.KubeletPID()))
	if out, err := scan.CombinedOutput(); err != nil {
		b.Errorf("kubediag scan: %v\n%s", err, out)
	}
}

func tail(text []byte) string { return string(text[max(0, len(text)-4000):]) }

var must = kerneltest.Must
