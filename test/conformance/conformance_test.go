// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

var specs = flag.String("specs", "", "a pattern of specs that BenchmarkConformance runs in place of its own, in one process")

// share is a set of specs that run in a process.
type share struct {
	name  string
	focus string // a pattern of the specs' names
	count int    // of specs that are not skipped, or anyCount
}

// anyCount is for specs that were asked for by hand.
const anyCount = -1

// shares run side by side. With alone, they are the 81 conformance specs of [sig-storage] about ConfigMaps, Secrets, projected volumes, the
// downward API, emptyDirs and subPaths. The others are those of hostPaths, of subPaths and of ephemeral volumes that are no part of conformance.
// Left out are all that need another image than agnhost, busybox and pause: generic ephemeral volumes need a provisioner, and the other drivers
// of the tree are servers of NFS and iSCSI and clouds.
var shares = []share{
	{"ConfigMap and Secret", `\[sig-storage\] (ConfigMap|Secrets) .*\[Conformance\]`, 20},
	{"downward API and subPath", `\[sig-storage\] (Downward API|Subpath) .*\[Conformance\]`, 16},
	{"emptyDir", `\[sig-storage\] EmptyDir volumes .*\[Conformance\]`, 15},
	{"projected", `\[sig-storage\] Projected .*\[Conformance\]`, 28},
	{"hostPath and ephemeral", `\[sig-storage\] (HostPath .*\[NodeConformance\]|Ephemeralstorage |Subpath Container restart)`, 7},
	{"subPath of hostPath", subPaths(`hostPath\] \[Testpattern: Inline-volume`), 14},
	{"subPath of a link", subPaths(`hostPathSymlink\] \[Testpattern: Inline-volume`), 14},
	{"subPath of emptyDir", subPaths(`emptydir\] \[Testpattern: Inline-volume`), 14},
	{"subPath of a local tmpfs", subPaths(`local\] \[LocalVolumeType: tmpfs\] \[Testpattern: Pre-provisioned PV`), 16},
	{"subPath of a local bind", subPaths(`local\] \[LocalVolumeType: dir-bindmounted\] \[Testpattern: Pre-provisioned PV`), 16},
	{"subPath of a local disk", subPaths(`local\] \[LocalVolumeType: blockfs\] \[Testpattern: Pre-provisioned PV`), 16},
}

// alone is run after the others: one of its specs starts many pods with fifty volumes each, and is to run by itself.
var alone = share{"emptyDir wrapper", `\[sig-storage\] EmptyDir wrapper .*\[Conformance\]`, 2}

// skipped are specs that stop the kubelet through SSH.
const skipped = `\[Disruptive\]`

// subPaths matches the specs of subPaths on the volumes of a driver. Two of them need a source that can be read-only, and skip themselves for
// volumes that are inline.
func subPaths(volumes string) string {
	return `\[Driver: ` + volumes + ` \(default fs\)\] subPath should `
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
	kubectl, err := cluster.Kubectl(b.Context())
	must(b, err)
	prepareTmp(b)
	e := install.Start(b, cluster.Options{Kubelet: cluster.Kubernetes136, SyncFrequency: time.Second})
	must(b, e.LoadEndToEndImages(b.Context()))
	e.Kubectl(b, policy, "apply", "-f", "-")
	n := &node{Env: e, tests: tests, kubectl: kubectl}
	for b.Loop() {
		n.run(b)
	}
	b.ReportMetric(float64(n.passed+n.failed), "specs")
	b.ReportMetric(float64(n.failed), "specs-failed")
	b.ReportMetric(n.repairs(b), "repairs")
	b.ReportMetric(float64(len(n.reported)), "faults-reported")
	n.checkClean(b)
}

// prepareTmp gives the machine's /tmp, which is the node's, the mode that one of the specs asks for. In the end it has its own mode again, and the
// files that specs leave there are gone.
func prepareTmp(b *testing.B) {
	b.Helper()
	const dir = "/tmp" // the specs do not ask for another
	before, err := os.Stat(dir)
	must(b, err)
	must(b, os.Chmod(dir, 0o777|os.ModeSticky))
	b.Cleanup(func() {
		must(b, os.Chmod(dir, before.Mode()))
		for _, name := range []string{"test-file", "sub-path/test-file", "sub-path"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				b.Error(err)
			}
		}
	})
}

// node is where the specs run.
type node struct {
	*install.Env
	tests   string // the program
	kubectl string
	dir     string // of the reports

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
	if *specs != "" {
		n.runShare(b, 0, share{"the pattern", *specs, anyCount})
	} else {
		for i, s := range shares {
			all.Go(func() { n.runShare(b, i, s) })
		}
		all.Wait()
		n.runShare(b, len(shares), alone)
	}
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
	cmd := exec.CommandContext(b.Context(), n.tests, "--kubeconfig="+n.Kubeconfig(), "--kubectl-path="+n.kubectl, "--provider=skeleton", "--num-nodes=1", "--disable-log-dump",
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
	if ran := passed + len(failures); ran != s.count && s.count != anyCount {
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
				failures = append(failures, fmt.Sprintf("%s %s: %s: %s", strings.Join(s.ContainerHierarchyTexts, " "), s.LeafNodeText, s.State, short(s.Failure.Message)))
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

// repairs counts the actions of repairs that the agent has made since it started, and shows the records of all Diagnoses.
func (n *node) repairs(b *testing.B) float64 {
	agent := n.Component(b, "agent")
	for _, c := range agent.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			b.Errorf("the agent has restarted %d times", c.RestartCount)
		}
	}
	var all v1.DiagnosisList
	must(b, n.List(b.Context(), &all))
	for _, d := range all.Items {
		b.Errorf("Diagnosis %s/%s, mode %q: %s", d.Namespace, d.Name, d.Spec.Mode, d.Status.Summary)
	}
	return n.repairsOf(b, agent.Status.PodIP)
}

// repairsOf adds up the series of the metric of repairs of the agent at an address.
func (n *node) repairsOf(b *testing.B, ip string) (count float64) {
	text := install.Fetch(b, "http://"+ip+":8080/metrics")
	series := regexp.MustCompile(`(?m)^(kubediag_repairs_total\{\S*\}) (\S+)$`).FindAllStringSubmatch(text, -1)
	if len(series) == 0 {
		b.Error("the agent has no metric of repairs")
	}
	for _, found := range series {
		value, err := strconv.ParseFloat(found[2], 64)
		must(b, err)
		if value > 0 {
			b.Errorf("repaired: %s %v", found[1], value)
		}
		count += value
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
	program := n.Build(b, "kubediag")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		scan := exec.CommandContext(b.Context(), program, "scan", fmt.Sprintf("--kubelet-pid=%d", n.KubeletPID()))
		out, err := scan.CombinedOutput()
		if scan.ProcessState.ExitCode() == 2 && time.Now().Before(deadline) {
			continue // something did not answer in time, as it may be on a busy machine
		}
		if err != nil {
			b.Errorf("kubediag scan: %v\n%s", err, out)
		}
		return
	}
}

func tail(text []byte) string { return string(text[max(0, len(text)-4000):]) }

// short leaves out the middle of a message: some hold a whole pod.
func short(message string) string {
	const begin, end = 500, 2000
	if len(message) <= begin+end {
		return message
	}
	return message[:begin] + "\n…\n" + message[len(message)-end:]
}

var must = kerneltest.Must
