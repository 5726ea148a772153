// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/program"
)

// noImage is a pod whose image is in no registry that the node reaches.
const noImage = `
apiVersion: v1
kind: Pod
metadata: {name: no-image, namespace: default, labels: {app: no-image}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: web, image: "kubediag.org/test/there-is-none:1", imagePullPolicy: Never}
`

// TestPlugin is what a person does with kubectl kubediag about the walkthrough's pod, a healthy one, and one that has another
// trouble.
func TestPlugin(t *testing.T) {
	t.Parallel()
	e := start(t, cluster.Options{Kubelet: cluster.Kubernetes118, SyncFrequency: time.Second})
	e.link(t)
	pod := e.deploy(t)

	e.says(t, "a healthy pod", 0, "\n✓ No mount fault", "run", "pod/"+pod.Name, "-n", "default")

	e.Kubectl(t, noImage, "apply", "-f", "-")
	e.Wait(t, "the pod without an image to wait for it", func(ctx context.Context) bool {
		p := &corev1.Pod{}
		err := e.Get(ctx, client.ObjectKey{Namespace: "default", Name: "no-image"}, p)
		return err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.HasPrefix(p.Status.ContainerStatuses[0].State.Waiting.Reason, "ErrImage")
	})
	e.says(t, "a pod without an image", 0, "It is not a mount: the kubelet says ErrImage", "run", "pod/no-image", "-n", "default")

	watch := e.watchFaults(t)
	e.Wait(t, "the first list of faults", func(context.Context) bool { return watch.Text() != "" })
	e.breakSubPath(t, pod, "second content")
	e.Wait(t, "the fault to be shown", func(context.Context) bool {
		return strings.Contains(watch.Text(), "✗ StaleSubPath default/"+pod.Name)
	})
	e.says(t, "faults", 1, "kubectl kubediag run pod/"+pod.Name+" -n default", "faults", "-A")
	e.bundles(t)
	e.healsAsPrinted(t, pod)
	e.Wait(t, "the fault to be gone", func(context.Context) bool {
		return strings.Contains(watch.Text(), "✓ StaleSubPath default/"+pod.Name)
	})
	e.Wait(t, "the agent to have judged all of its node", func(context.Context) bool {
		out, status := e.kubediag(t, "faults", "-A")
		return status == 0 && strings.Contains(out, "✓ No fault is known")
	})
	out, status := e.kubediag(t, "doctor")
	t.Logf("doctor, status %d:\n%s", status, out)
	if strings.Contains(out, "FAIL") || !strings.Contains(out, "kubernetes#68211") {
		t.Errorf("status %d", status)
	}
}

// bundles has the agent's pod write a bundle, and finds in it what is broken.
func (e *env) bundles(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ticket.tar.gz")
	e.says(t, "bundle", 0, "kubediag scan --from "+file, "bundle", "--node", e.NodeName(), "-o", file)
	found, err := exec.CommandContext(t.Context(), e.Build(t, "kubediag"), "scan", "--brief", "--from", file).CombinedOutput()
	if !strings.Contains(string(found), "1 fault: StaleSubPath") {
		t.Errorf("scan --from: %v: %s", err, found)
	}
}

// healsAsPrinted asks for the plan, and pastes the command that it ends with.
func (e *env) healsAsPrinted(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	out := e.says(t, "a plan", 1, "", "run", "pod/"+pod.Name, "-n", "default")
	e.says(t, "the repair", 0, "✓ Healed in ", toPaste(t, out, `(run pod/.* --plan-hash=[0-9a-f]{64})`)...)
	after := e.podOf(t.Context(), "core2")
	if after == nil || after.UID != pod.UID || !running(after) {
		t.Fatalf("the pod is not running again: %+v", after)
	}
}

// link puts the program where kubectl looks for it.
func (e *env) link(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Symlink(e.Build(t, "kubectl-kubediag"), filepath.Join(dir, "kubectl-kubediag")))
	e.environ = append(os.Environ(), "KUBECONFIG="+e.Kubeconfig(), "PATH="+dir+":"+os.Getenv("PATH"), "LANG=C.UTF-8")
}

func (e *env) plugin(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	kubectl, err := cluster.Kubectl(t.Context())
	must(t, err)
	cmd := exec.CommandContext(t.Context(), kubectl, append([]string{"kubediag"}, args...)...)
	cmd.Env = e.environ
	return cmd
}

// kubediag runs kubectl kubediag, and returns its output and its status.
func (e *env) kubediag(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := e.plugin(t, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// says runs kubectl kubediag, which is to end with a status and to say this, and returns its output.
func (e *env) says(t *testing.T, title string, want int, text string, args ...string) string {
	t.Helper()
	out, status := e.kubediag(t, args...)
	t.Logf("%s:\n%s", title, out)
	if status != want || !strings.Contains(out, text) {
		t.Errorf("%s: status %d, want %d and %q", title, status, want, text)
	}
	return out
}

// toPaste returns the arguments of the command that an output has on a line of its own. The pattern has them in a group.
func toPaste(t *testing.T, out, pattern string) []string {
	t.Helper()
	line := regexp.MustCompile(`(?m)^  kubectl kubediag ` + pattern + `$`).FindStringSubmatch(out)
	if line == nil {
		t.Fatalf("no command to paste is as %s", pattern)
	}
	return strings.Fields(line[1])
}

// watchFaults follows the faults until the test ends.
func (e *env) watchFaults(t *testing.T) *program.Output {
	t.Helper()
	o := &program.Output{}
	cmd := e.plugin(t, "faults", "-A", "-w")
	cmd.Stdout, cmd.Stderr = o, o
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Logf("faults -A -w:\n%s", o.Text())
	})
	return o
}
