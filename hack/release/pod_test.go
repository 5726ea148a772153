// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/debian"
)

// checkHealsPod installs a release on a cluster from the files of its folder alone, breaks the volume of a running pod, and heals it. It uses
// neither Go nor the source tree nor a registry, and prints how long each command takes, and all of them.
func checkHealsPod(t *testing.T, b builtRelease, kubelet string) {
	u := newUser(t, b.options, kubelet)
	began := time.Now()
	for _, line := range documentedCommands(t, string(readRelease(t, b.options, "RELEASE_NOTES.md"))) {
		switch line {
		case "kubectl kubediag doctor":
			u.await(t, line, allSets)
			u.checkDoctor(t, u.run(t, line))
		case "kubectl kubediag faults -A":
			u.await(t, line+" && echo none", regexp.MustCompile(`(?m)^none$`)) // the agent looks at the node for the first time
		default:
			u.run(t, inTest.Replace(line))
		}
	}
	for _, line := range []string{
		"kubectl rollout status --timeout=5m deployment/trainer",
		"kubectl exec deploy/trainer -- sh -c 'echo epoch 41 >/data/state'",
		"kubectl delete pod -n csi-driver -l app=csi-driver",
	} {
		u.run(t, line)
	}
	if out, err := u.shell(t.Context(), read).CombinedOutput(); err == nil || !strings.Contains(string(out), "Transport endpoint is not connected") {
		t.Errorf("the volume is not dead: %v\n%s", err, out)
	}
	u.await(t, "kubectl kubediag faults -A", deadVolume)
	u.run(t, heal)
	if out := u.run(t, read); out != "epoch 41\n" {
		t.Errorf("the container reads %q", out)
	}
	took := time.Since(began)
	if out := u.run(t, "kubectl get pods -l app=trainer --no-headers"); !regexp.MustCompile(`^trainer-\S+ +1/1 +Running +0 `).MatchString(out) {
		t.Errorf("the pod was not healed where it is: %s", out)
	}
	t.Logf("from the folder of the release to a healed pod: %s", took.Round(time.Second))
	u.checkHelm(t, b.options)
	u.checkUninstall(t)
}

// Commands of a user of the pod, and a line of its fault.
const (
	read = "kubectl exec deploy/trainer -- cat /data/state"
	heal = `kubectl kubediag run --heal=auto "$(kubectl get pods -l app=trainer -o name)"`
)

var (
	deadVolume = regexp.MustCompile(`(?m)^DisconnectedFUSE .* safe `)
	allSets    = regexp.MustCompile(`(?m)^OK +\d+ OperationSets ready$`) // seconds after the start of the manager
	none       = regexp.MustCompile(`^0\n$`)                             // counted by grep
)

// checkUninstall uninstalls the release while a repair is under way. The volume is dead then, or healed, and nothing between the two. The next
// installation ends the Diagnosis that was left, and heals the volume.
func (u *user) checkUninstall(t *testing.T) {
	t.Helper()
	u.run(t, "kubectl delete diagnoses --all --all-namespaces")
	u.run(t, "kubectl delete pod -n csi-driver -l app=csi-driver")
	u.await(t, "kubectl kubediag faults -A", deadVolume)
	u.run(t, heal+` >"$TOOLS/heal.log" 2>&1 &
		until [ -n "$(kubectl get diagnoses -A -o name)" ]; do :; done
		helm uninstall kubediag --namespace kubediag --wait
		kill %1; wait; cat "$TOOLS/heal.log"`)
	out, err := u.shell(t.Context(), read).CombinedOutput()
	t.Logf("after the uninstallation the container reads %q", out)
	if string(out) != "epoch 41\n" && (err == nil || !strings.Contains(string(out), "Transport endpoint is not connected")) {
		t.Errorf("the volume is neither dead nor healed: %v\n%s", err, out)
	}
	u.await(t, "kubectl get pods --namespace kubediag -o name | grep -c -e agent -e manager", none)

	u.run(t, inTest.Replace("kubectl apply -f install.yaml"))
	u.run(t, "kubectl -n kubediag rollout status --timeout=5m daemonset/kubediag-agent")
	u.await(t, `kubectl get diagnoses -A -o jsonpath='{range .items[*]}{.status.phase}{"\n"}{end}' | grep -vc -e Succeeded -e Failed`, none)
	u.await(t, heal+` >/dev/null 2>&1; `+read, regexp.MustCompile(`^epoch 41\n$`))
	if out := u.run(t, "kubectl exec deploy/trainer -- grep -c ' /data ' /proc/mounts"); out != "1\n" {
		t.Errorf("the container has %s mounts of the volume", out)
	}
}

// checkQuickStart types the commands of the quick start in the source tree: five install kubediag, and the others list the faults.
func checkQuickStart(t *testing.T, b builtRelease, kubelet string) {
	page, err := os.ReadFile(filepath.Join(b.clone, "docs/quick-start.md"))
	must(t, err)
	commands := documentedCommands(t, string(page))[:9]
	if !strings.HasPrefix(commands[4], "kubectl -n kubediag rollout status ") || commands[8] != "kubectl kubediag faults -A" {
		t.Fatalf("the page has the commands %q", commands)
	}
	u := newUser(t, b.options, kubelet)
	u.dir = b.clone
	u.withGo(t)
	began := time.Now()
	for _, line := range commands {
		switch line {
		case "kubectl kubediag doctor":
			u.await(t, line, allSets)
		case "kubectl kubediag faults -A":
			u.await(t, line+" && echo none", regexp.MustCompile(`(?m)^none$`))
		default:
			u.run(t, inTest.Replace(line))
		}
	}
	t.Logf("from the source tree to a clean list of faults: %s", time.Since(began).Round(time.Second))
}

// checkDoctor holds that an installation of a minute ago has nothing wrong, and follows the advice of doctor.
func (u *user) checkDoctor(t *testing.T, out string) {
	t.Helper()
	if !allSets.MatchString(out) || strings.Contains(out, "FAIL") ||
		!strings.Contains(out, "-f policies.yaml of a release") {
		t.Errorf("doctor says:\n%s", out)
	}
	u.run(t, "kubectl apply -f policies.yaml")
	if out := u.run(t, "kubectl kubediag doctor"); !strings.Contains(out, "policies in force: ") || strings.Contains(out, "not installed") {
		t.Errorf("with the policies, doctor says:\n%s", out)
	}
}

// checkHelm has Helm take over the installation with the chart of the release, and runs the chart's test.
func (u *user) checkHelm(t *testing.T, o options) {
	t.Helper()
	helm, err := cluster.Helm(t.Context())
	must(t, err)
	must(t, os.Symlink(helm, filepath.Join(u.tools, "helm")))
	u.run(t, fmt.Sprintf("ctr -n k8s.io images import kubediag-cli-%s.oci.tar", o.version))
	u.run(t, fmt.Sprintf(`helm install kubediag kubediag-%s.tgz --namespace kubediag --take-ownership --wait --set agent.dataRoot="$CLUSTER/agent"`,
		o.chartVersion()))
	if out := u.run(t, "helm test kubediag --namespace kubediag --logs"); !regexp.MustCompile(`(?m)^Phase: +Succeeded$`).MatchString(out) || !strings.Contains(out, "manager: 1 of 1 replica ready") {
		t.Errorf("helm test: %s", out)
	}
}

// inTest replaces the parts of documented commands that would reach beyond the test: each cluster of this machine has another directory for
// its agent, and each user another one for programs.
var inTest = strings.NewReplacer(
	"kubectl apply -f install.yaml", `sed "s#path: /var/lib/kubediag\$#path: $CLUSTER/agent#" install.yaml | kubectl apply -f -`,
	"sudo install kubectl-kubediag /usr/local/bin/", `mv kubectl-kubediag "$TOOLS"`,
	"kubectl apply -k config/default",
	`kubectl kustomize config/default | sed "s#path: /var/lib/kubediag\$#path: $CLUSTER/agent#" | kubectl apply -f -`,
	"sudo install bin/kubectl-kubediag /usr/local/bin/", `cp bin/kubectl-kubediag "$TOOLS"`,
)

// documentedCommands are the commands of a page in Markdown.
func documentedCommands(t *testing.T, page string) []string {
	t.Helper()
	var commands []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		commands = append(commands, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	if len(commands) < 5 {
		t.Fatalf("the page has %d commands", len(commands))
	}
	return commands
}

// user types commands in the folder of a release. The PATH has kubectl and Debian's programs, and no Go.
type user struct {
	dir     string // of the release
	tools   string // first in the PATH
	environ []string
}

// newUser starts a cluster with a FUSE volume and a pod that has it.
func newUser(t *testing.T, o options, kubelet string) *user {
	t.Helper()
	tools := t.TempDir()
	program := filepath.Join(t.TempDir(), "cluster")
	output(t, exec.Command("go", "build", "-o", program, "kubediag.org/kubediag/test/cluster/cmd/cluster"))
	args := []string{"up", fmt.Sprintf("--name=release-%d", os.Getpid()), "--kubelet=" + kubelet, "--fuse"}
	root, err := filepath.Abs("../..")
	must(t, err)
	up := exec.Command("setpriv", append([]string{"--pdeathsig=TERM", program}, append(args, "--serve")...)...) // it ends the cluster with itself
	up.Dir, up.Stderr = root, os.Stderr
	out, err := up.StdoutPipe()
	must(t, err)
	must(t, up.Start())
	t.Cleanup(func() {
		_ = up.Process.Signal(os.Interrupt)
		if err := up.Wait(); err != nil {
			t.Errorf("ending the cluster: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("starting the cluster: %v", err)
	}
	kubeconfig, kubectl, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export KUBECONFIG="), " PATH=")
	kubectl, _, ends := strings.Cut(kubectl, ":")
	if !ok || !ends {
		t.Fatalf("the cluster says %q", line)
	}
	dir := filepath.Dir(kubeconfig)
	u := &user{dir: o.dir(), tools: tools, environ: []string{
		"HOME=" + tools, "TOOLS=" + tools, "CLUSTER=" + dir, "KUBECONFIG=" + kubeconfig, "CONTAINERD_ADDRESS=" + dir + "/containerd.sock",
		"PATH=" + strings.Join([]string{tools, kubectl, debian.Path}, ":"), "LANG=C.UTF-8", "NO_COLOR=1",
	}}
	pod, err := os.ReadFile("../../config/samples/fuse-workload.yaml")
	must(t, err)
	apply := u.shell(t.Context(), "kubectl apply -f -")
	apply.Stdin = strings.NewReader(strings.ReplaceAll(string(pod), "debian:12", cluster.BusyboxImage))
	output(t, apply)
	return u
}

// withGo puts Go into the PATH, with the caches of this user.
func (u *user) withGo(t *testing.T) {
	t.Helper()
	program, err := exec.LookPath("go")
	must(t, err)
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB"} {
		u.environ = append(u.environ, name+"="+strings.TrimSpace(output(t, exec.Command("go", "env", name))))
	}
	for i, v := range u.environ {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			u.environ[i] = "PATH=" + path + ":" + filepath.Dir(program)
		}
	}
}

func (u *user) shell(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = u.dir, u.environ
	return cmd
}

func (u *user) run(t *testing.T, line string) string {
	t.Helper()
	began := time.Now()
	out, err := u.shell(t.Context(), line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	t.Logf("%5.1f s  %s", time.Since(began).Seconds(), line)
	return string(out)
}

// await repeats a command until its output is as it should be.
func (u *user) await(t *testing.T, line string, want *regexp.Regexp) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		out, err := u.shell(t.Context(), line).CombinedOutput()
		if want.Match(out) {
			return
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}
