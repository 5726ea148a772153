// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/program"
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

// plugin is the program as kubectl finds it.
type plugin struct {
	*fakenode.Node
	path string
}

// install starts everything but the agent.
func install(t *testing.T) *plugin {
	t.Helper()
	p := &plugin{Node: fakenode.New(t)}
	p.Build(t, "manager", "")
	p.Build(t, "agent", "")
	p.Build(t, "kubediag", "")
	p.Build(t, "kubectl-kubediag", "")
	p.path = p.Program("kubectl-kubediag")
	p.Launch(t, "manager")
	p.AwaitSet(t, v1.DefaultOperationSet) // the manager installs it
	return p
}

// command is a call of the program, without a terminal.
func (p *plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig(), "LANG=C.UTF-8", "COLUMNS=160")
	return cmd
}

// call runs the program, and fails the test unless it ends with this status.
func (p *plugin) call(t *testing.T, status int, args ...string) (out string) {
	t.Helper()
	cmd := p.command(t.Context(), args...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
		t.Fatalf("%q: %v, want status %d:\n%s", args, err, status, text)
	}
	if bytes.ContainsAny(text, "\x1b\r") {
		t.Errorf("%q: control characters in %q", args, text)
	}
	return string(text)
}

// expect fails the test unless a text matches each of the patterns, in this order.
func expect(t *testing.T, text string, patterns ...string) {
	t.Helper()
	rest := text
	for _, pattern := range patterns {
		at := regexp.MustCompile(pattern).FindStringIndex(rest)
		if at == nil {
			t.Errorf("%q is not, or not there, in:\n%s", pattern, text)
			return
		}
		rest = rest[at[1]:]
	}
}

// background is a call that goes on.
type background struct {
	*exec.Cmd
	program.Output
}

// await waits until the output matches.
func (b *background) await(t *testing.T, pattern string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if !regexp.MustCompile(pattern).MatchString(b.Text()) {
			return errors.New(pattern + " is not in:\n" + b.Text())
		}
		return nil
	})
}

// interrupt ends the call as Ctrl-C does, and returns its status.
func (b *background) interrupt(t *testing.T) int {
	t.Helper()
	must(t, b.Process.Signal(os.Interrupt))
	_ = b.Wait()
	return b.ProcessState.ExitCode()
}

func (p *plugin) start(t *testing.T, args ...string) *background {
	t.Helper()
	b := &background{Cmd: p.command(t.Context(), args...)}
	b.Stdout, b.Stderr = b, b
	must(t, b.Start())
	return b
}

func (p *plugin) mountedAt(t *testing.T) mount.State {
	t.Helper()
	state, err := mount.Inspect(p.Point())
	must(t, err)
	return state
}

// unmount takes away what is mounted where the kubelet binds the subPath.
func (p *plugin) unmount(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "umount", p.Point()).CombinedOutput(); err != nil {
		t.Fatalf("umount: %v\n%s", err, out)
	}
}

var hash = regexp.MustCompile(`--plan-hash=[0-9a-f]{64}`)

func TestRun(t *testing.T) {
	p := install(t)
	p.LaunchAgent(t, "Off")
	p.Bind(t)

	began := time.Now()
	healthy := p.call(t, 0, "run", "pod/core2")
	t.Logf("run on a healthy pod took %.2f s:\n%s", time.Since(began).Seconds(), healthy)
	expect(t, healthy, `^pod default/core2, Diagnosis default/core2-\w+\n✓ No mount fault was found: pod default/core2 does not wait for anything \([0-9.]+ m?s\)`)

	stale := p.Break(t, 1)
	plan := p.call(t, 1, "run", "pod/core2")
	t.Logf("a plan:\n%s", plan)
	expect(t, plan, `✗ StaleSubPath: container debian, volume conf, pod default/core2\n`, `Plan [0-9a-f]{12}, \d+ actions?; nothing is lost\n   would \w+ /`,
		`Nothing was changed\. To repair exactly this:\n  kubectl kubediag run pod/core2 -n default --plan-hash=[0-9a-f]{64}\n`)
	if now := p.mountedAt(t); now.UniqueID != stale.UniqueID {
		t.Errorf("a plan has changed the mount: %+v, was %+v", now, stale)
	}

	// The same pod has another mount by now, so the plan that was shown is not the one that would be repaired.
	p.unmount(t)
	again := p.Break(t, 2)
	refused := p.call(t, 3, "run", "pod/core2", hash.FindString(plan))
	expect(t, refused, `kubediag: run: refused: .*the plan has hash [0-9a-f]{64} now`)
	if now := p.mountedAt(t); now.UniqueID != again.UniqueID {
		t.Errorf("a plan that does not fit has changed the mount: %+v, was %+v", now, again)
	}

	plan = p.call(t, 1, "run", "pod/core2", "--heal=never")
	healed := p.call(t, 0, "run", "pod/core2", "-n", "default", hash.FindString(plan))
	t.Logf("a repair:\n%s", healed)
	expect(t, healed, `  ✓ \w+ /`, `✓ Healed in \d+.* m?s\. Repaired StaleSubPath`, `keep the old file until their next start`)
	expect(t, p.call(t, 0, "run", "pod/core2"), `No mount fault was found`)

	p.Break(t, 3)
	p.asks(t, "n", `Heal\? \[y/N/d=details\] n\s+Nothing was changed`)
	p.asks(t, "y", `Heal\? \[y/N/d=details\] y\n`, `pod default/core2, Diagnosis `, `Healed in`)
	p.Break(t, 4)
	auto := p.call(t, 0, "run", "pod/core2", "--heal=auto")
	expect(t, auto, `Plan [0-9a-f]{12}`, `Healed in`)
	p.artifacts(t)
	p.reports(t)
}

// artifacts reads the mount table of the node and the Pod through the API server alone.
func (p *plugin) artifacts(t *testing.T) {
	t.Helper()
	out := p.call(t, 0, "run", "pod/core2", "--artifacts", "-o", "json")
	name := regexp.MustCompile(`"name": "(core2-\w{5})"`).FindStringSubmatch(out)
	if name == nil {
		t.Fatalf("no Diagnosis in:\n%s", out)
	}
	dir := t.TempDir()
	files := strings.Fields(p.call(t, 0, "report", name[1], "--artifacts", dir))
	for i, want := range []string{`"kind":"Pod"`, "/volume-subpaths/conf/debian/0 "} {
		if len(files) != 2 {
			t.Fatalf("files %q", files)
		}
		if text, err := os.ReadFile(files[i]); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %.200q, want %q in it", files[i], err, text, want)
		}
	}
}

// reports shows what was done in other ways.
func (p *plugin) reports(t *testing.T) {
	t.Helper()
	var list v1.DiagnosisList
	must(t, p.List(t.Context(), &list, client.InNamespace("default")))
	name := ""
	for _, d := range list.Items {
		if d.Status.Outcome == v1.OutcomeHealed {
			name = d.Name
		}
	}
	report := p.call(t, 0, "report", name)
	t.Logf("a report:\n%s", report)
	expect(t, report, `^# Diagnosis default/`+name, `\*\*Healed\*\*`, `\n## Findings\n\n1\. \*\*StaleSubPath\*\*, Healed`, `\n## Plan\n`, `\| 1 \| `, `\n## Operations\n`,
		"`auto-recover`", `\n## Calls\n`, "`umount2`", `\n## Results and proof\n`, `\n## Artifacts on the node\n`)
	expect(t, p.call(t, 0, "report", name, "-o", "json"), `"kind": "Diagnosis"`, `"outcome": "Healed"`)
	expect(t, p.call(t, 0, "get"), `NAME +TARGET +FAULT +OUTCOME +AGE\n`, name+` +pod default/core2 +StaleSubPath +Healed`)
	expect(t, p.call(t, 0, "get", "-A", "-o", "wide"), `NAMESPACE +NAME +TARGET .*SUMMARY`, `default +core2-`)
	expect(t, p.call(t, 0, "get", name, "-o", "name"), `^diagnosis.diagnosis.kubediag.org/`+name+`\n$`)
	expect(t, p.call(t, 0, "get", name, "-w"), `✓ unmount /`, `Healed in`)
	expect(t, p.call(t, 0, "cancel", name), `has ended already`)
	expect(t, p.call(t, 2, "report", "nope"), `report: diagnoses.diagnosis.kubediag.org default/nope: not found`)
}

// home names the namespace that kubediag is installed in here.
const home = "--kubediag-namespace=default"

// forgetAgent deletes the Lease of an agent of another test.
func (p *plugin) forgetAgent(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = "default", v1.AgentLeaseName(fakenode.NodeName)
	if err := p.Delete(t.Context(), lease); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

func TestFaultsComeAndGo(t *testing.T) {
	p := install(t)
	p.Bind(t)
	p.forgetAgent(t)
	expect(t, p.call(t, 2, "faults", home), `^! 1 of 1 nodes is not watched: stage-node \(no agent\)\n! No fault is known in namespace default, but that`,
		`\nNext:\n  kubectl kubediag doctor --kubediag-namespace=default `, `kubediag: faults: not all nodes are watched`)
	p.LaunchAgent(t, "Observe")
	apitest.Eventually(t, func() error { // other tests may flood the machine with mounts: then the agent cannot judge all of it
		out, _ := p.command(t.Context(), "faults", home).Output()
		if !regexp.MustCompile(`^(✓ No fault is known in namespace default\. All namespaces: kubectl kubediag faults -A\n$|! 1 node could not be judged in full: stage-node \(\d)`).Match(out) {
			return fmt.Errorf("not looked at:\n%s", out)
		}
		return nil
	})
	watch := p.start(t, "faults", "-A", "-w", home)
	watch.await(t, `(?m)^[✓!] No fault is known in all namespaces`)
	p.Break(t, 1)
	watch.await(t, `\d\d:\d\d:\d\d ✗ StaleSubPath default/core2: next start, heal: safe: `)
	table := p.call(t, 1, "faults", "-A")
	t.Logf("a table:\n%s", table)
	expect(t, table, `^✗ 1 fault in all namespaces\. At risk at the next start: 1 pod\.\n`, `FAULT +HURTS +HEAL +POD OR DEVICE +VOLUME +NODE +SINCE\n`,
		`StaleSubPath +next start +safe +default/core2 +conf +stage-node +\d`, `\nNext:\n  kubectl kubediag show mf/core2-\w+ -n default `,
		`  kubectl kubediag run pod/core2 -n default `, `  kubectl kubediag explain StaleSubPath `)
	expect(t, p.call(t, 1, "faults", "-o", "json", "--code", "StaleSubPath"), `"kind": "MountFaultList"`, `"code": "StaleSubPath"`)
	code, _ := p.command(t.Context(), "faults", "--code", "HungMount", home).Output()
	expect(t, string(code), `[✓!] No fault`)
	expect(t, p.call(t, 2, "faults", "--node", "another", home), `kubediag: faults: nodes another: not found`)
	p.call(t, 0, "run", "pod/core2", "--heal=auto")
	watch.await(t, `\d\d:\d\d:\d\d ✓ StaleSubPath default/core2: gone after \d+`)
	if status := watch.interrupt(t); status != 0 {
		t.Errorf("status %d:\n%s", status, watch.Text())
	}
	t.Logf("what was seen:\n%s", watch.Text())
}

// TestWaiting: without an agent nothing happens to a Diagnosis, and that is said.
func TestWaiting(t *testing.T) {
	p := install(t)
	p.forgetAgent(t)
	run := p.start(t, "run", "node/"+fakenode.NodeName)
	run.await(t, `! waits: No agent answers on node stage-node`)
	if status := run.interrupt(t); status != 2 {
		t.Errorf("status %d", status)
	}
	expect(t, run.Text(), `The Diagnosis goes on:\n  kubectl kubediag get stage-node-\w+ -n default -w `, `kubediag: run: diagnosis default/stage-node-\w+: interrupted`)
	expect(t, p.call(t, 2, "run", "node/"+fakenode.NodeName, "--timeout=1s"), `it has not ended within 1s`)
	var list v1.DiagnosisList
	if err := p.List(t.Context(), &list, client.InNamespace("default")); err != nil || len(list.Items) != 2 {
		t.Fatalf("%v, %d Diagnoses", err, len(list.Items))
	}
	for _, d := range list.Items {
		follow := p.start(t, "get", d.Name, "-w")
		follow.await(t, `waits: `)
		expect(t, p.call(t, 0, "cancel", d.Name), `waits: `, `✓ Deleted Diagnosis default/`+d.Name)
		if _ = follow.Wait(); follow.ProcessState.ExitCode() != 2 || !strings.Contains(follow.Text(), "it is cancelled") {
			t.Errorf("%s:\n%s", follow.ProcessState, follow.Text())
		}
		if err := p.Get(t.Context(), client.ObjectKeyFromObject(&d), &d); !apierrors.IsNotFound(err) {
			t.Errorf("the Diagnosis is there: %v", err)
		}
	}
}

func TestRefusals(t *testing.T) {
	p := install(t)
	empty := filepath.Join(t.TempDir(), "empty")
	for _, c := range []struct {
		status  int
		args    string
		pattern string
	}{
		{3, "faults -A --as=eve", `kubediag: faults: refused: .*"eve" cannot list resource "mountfaults" in API group "diagnosis.kubediag.org"`},
		{3, "run pod/core2 --as=eve", `refused: .*"eve" cannot create resource "diagnoses"`},
		{2, "run pod/nope", `run: pods default/nope: not found`},
		{2, "run node/nope", `run: nodes nope: not found`},
		{2, "run pvc/nope", `persistentvolumeclaims default/nope: not found`},
		{2, "run rbd0@nope", `nodes nope: not found`},
		{2, "run deployment/web", `deployments.apps default/web: not found`},
		{2, "run pod/core2 --heal=yes", `--heal="yes": must be ask, auto or never`},
		{2, "run node/stage-node --evict", `--evict: node stage-node is no pod: name a pod, a workload or a claim`},
		{2, "run rbd0@stage-node --evict", `--evict: device rbd0 of stage-node is no pod`},
		{2, "run pod/core2 --plan-hash=f", `--plan-hash="f": must be the 64 hexadecimal digits`},
		{2, "run", `run: TARGET is missing, see kubectl kubediag run --help`},
		{2, "bundle", `bundle: --node is missing: name the node`},
		{2, "bundle --node nope", `bundle: nodes nope: not found`},
		{2, "bundle --node stage-node", `no agent runs on node "stage-node": use kubectl debug node/stage-node --image=localhost/kubediag/cli:v\d+\.\d+\.\d+ --profile=sysadmin -it -- /kubediag scan`},
		{3, "bundle --node nope --as=eve", `refused: .*cannot list resource "pods"`},
		{3, "bundle --node nope -o /dev/null", `is there already: name another file with -o, or add --force`},
		{2, "faults web", `faults: takes no arguments`},
		{2, "faults --code=x", `--code="x": is none of`},
		{2, "faults -o xml", `must be one of wide, json, yaml, name`},
		{2, "faults --kubeconfig=" + empty, `no such file`},
		{2, "faults --server=https://127.0.0.1:1", `the API server at https://127.0.0.1:1 is not reached: .*refused`},
		{2, "faults --request-timeout=1ns", `the API server did not answer within 1ns: give it more with --request-timeout`},
		{2, "scan", `unknown command "scan" for "kubectl kubediag"`},
	} {
		expect(t, p.call(t, c.status, strings.Fields(c.args)...), c.pattern)
	}
	cmd := p.command(t.Context(), "faults")
	cmd.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG="}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "there is no kubeconfig") {
		t.Errorf("without a kubeconfig: %v\n%s", err, out)
	}
	expect(t, p.call(t, 0, "__complete", "run", "pod/c"), `pod/core2\n`)
	expect(t, p.call(t, 0, "__complete", "run", "rbd0@"), `rbd0@stage-node\n`)
	expect(t, p.call(t, 0, "explain", "StaleSubPath", "--lang", "zh"), `kubernetes#68211|68211`)
}

// TestDoctor: there is no Deployment and no DaemonSet here, and no kubelet has filled in the node.
func TestDoctor(t *testing.T) {
	p := install(t)
	out := p.call(t, 1, "doctor")
	t.Logf("doctor:\n%s", out)
	server := `WARN  API server v1\.\d+\.\d+ checks no rules of CustomResourceDefinitions, as 1.25 does`
	if apitest.Start(t).Rules {
		server = `OK    API server v1\.`
	}
	policies := `WARN  no policies: this API server has no ValidatingAdmissionPolicies, as 1.30 has`
	if apitest.HasPolicies() {
		policies = `WARN  8 policies are not installed: kubediag-agent-node, [^>]*      -> recommended: ` +
			`kubectl apply -f config/policy/agent-node.yaml -f config/policy/diagnosis-rights.yaml`
	}
	expect(t, out, server, `OK    \d CustomResourceDefinitions of diagnosis.kubediag.org are there`, policies,
		`OK    \d+ OperationSets ready`, `OK    you may see faults`, `FAIL  there is no manager in namespace kubediag\n      -> install it`, `FAIL  there is no DaemonSet of agents`)
	expect(t, p.call(t, 1, "doctor", "-o", "json"), `"level": "FAIL"`, `"schemaVersion": 1`)
	expect(t, p.call(t, 2, "doctor", "--as=eve", "--as-group=system:authenticated"), `WARN  you may not: list mountfaults; `, `in\s+namespace\s+default:\s+create\s+diagnoses`)
}

// TestLint: the pod has a subPath of a ConfigMap, and the version of the kubelet is not known.
func TestLint(t *testing.T) {
	p := install(t)
	out := p.call(t, 1, "lint", "-A")
	t.Logf("lint:\n%s", out)
	expect(t, out, `^MutableSubPath Pod default/core2: `, `  Cure: `, `\n✗ 1 risk in \d+ workloads?; the versions of the kubelets are not known, and the oldest was assumed\.\n$`)
	expect(t, p.call(t, 1, "lint", "-o", "json"), `"code": "StaleSubPath"`, `"name": "core2"`, `"workloads": \d`)
	fixed := true
	conf := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conf"}, Immutable: &fixed}
	must(t, p.Create(t.Context(), conf))
	t.Cleanup(func() {
		if err := p.Delete(context.WithoutCancel(t.Context()), conf); err != nil {
			t.Error(err)
		}
	})
	expect(t, p.call(t, 0, "lint", "-A"), `^✓ No risk found in \d+ workloads?; `)
	expect(t, p.call(t, 2, "lint", "--as=eve"), `! Not looked at: refused: `, `kubediag: lint: not all workloads were looked at`)
}

// TestNotInstalled takes a kind away, and brings it back for the other tests.
func TestNotInstalled(t *testing.T) {
	p := install(t)
	apitest.Start(t).Without(t, "mountfaults")
	apitest.Eventually(t, func() error {
		if err := p.List(t.Context(), &v1.MountFaultList{}); err == nil {
			return errors.New("it is still served")
		}
		return nil
	})
	expect(t, p.call(t, 2, "faults", "-A"), `kubediag: faults: kubediag is not installed: the API server serves no mountfaults.diagnosis.kubediag.org`)
	expect(t, p.call(t, 1, "doctor"), `FAIL  CustomResourceDefinition mountfaults.diagnosis.kubediag.org is missing\n      -> install it: kubectl apply -k config/default`)
}

var must = kerneltest.Must
