// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/test/cluster"
)

// built is a program of test/integrations that has a module of its own.
func built(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	cmd.Dir, cmd.Env = filepath.Join(root, "test/integrations", name), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return file
}

// run gives a program its input and returns its output.
func run(t *testing.T, input []byte, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, said.String())
	}
	return string(out)
}

// typed runs the commands of a page as they stand there, in both languages the same ones, and returns their output.
func (s server) typed(t *testing.T, page string) string {
	t.Helper()
	script := commandsOf(t, page+".md")
	if diff := cmp.Diff(script, commandsOf(t, page+".zh-CN.md")); script == "" || diff != "" {
		t.Fatalf("%s: commands (-English +Chinese):\n%s", page, diff)
	}
	home := t.TempDir()
	for name, get := range map[string]func(context.Context) (string, error){"helm": cluster.Helm, "kubectl": cluster.Kubectl} {
		file, err := get(t.Context())
		if err == nil {
			err = os.Symlink(file, filepath.Join(home, name))
		}
		must(t, err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-euxc", script)
	cmd.Dir = root
	cmd.Env = []string{"PATH=" + home + ":" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + s.kubeconfig}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", page, err, out)
	}
	return string(out)
}

// commandsOf are the lines of all blocks of a page that are for a shell.
func commandsOf(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	must(t, err)
	var all strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all.WriteString(block[1])
	}
	return all.String()
}

// podOf is the pod of a workload, or the object itself if it is one.
func podOf(t *testing.T, object map[string]any) corev1.Pod {
	t.Helper()
	var workload struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			corev1.PodSpec
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	remarshal(t, object, &workload)
	pod := corev1.Pod{ObjectMeta: workload.Spec.Template.ObjectMeta, Spec: workload.Spec.Template.Spec}
	if workload.Kind == "Pod" {
		pod.ObjectMeta, pod.Spec = workload.ObjectMeta, workload.Spec.PodSpec
	}
	pod.APIVersion, pod.Kind, pod.Name = "v1", "Pod", "tried"
	return pod
}

// TestConstraintsOfOpenShift has the admission library of OpenShift judge the pods by the constraints that config/integrations/openshift.yaml
// gives their ServiceAccounts. None of them is admitted by the constraint that every user may use.
func TestConstraintsOfOpenShift(t *testing.T) {
	t.Parallel()
	judge := built(t, "openshift")
	all := rendered(t, "kubediag", "--values="+root+"/config/integrations/openshift.yaml")
	less := rendered(t, "kubediag", "--values="+root+"/config/integrations/unprivileged.yaml")
	pods := map[string]corev1.Pod{
		"agent":              podOf(t, all["DaemonSet kubediag-agent"]),
		"agent with less":    podOf(t, less["DaemonSet kubediag-agent"]),
		"manager":            podOf(t, all["Deployment kubediag-manager"]),
		"pod of a helm test": podOf(t, all["Pod kubediag-test"]),
	}
	wants := map[string][]string{
		"privileged":    {"agent", "agent with less", "manager", "pod of a helm test"},
		"nonroot-v2":    {"manager", "pod of a helm test"},
		"restricted-v2": nil,
	}
	names := slices.Sorted(maps.Keys(pods))
	var list []corev1.Pod
	for _, name := range names {
		list = append(list, pods[name])
	}
	input, err := json.Marshal(list)
	must(t, err)
	for constraint, want := range wants {
		out := run(t, input, judge, "testdata/scc/"+constraint+".yaml")
		var got []string
		for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if line == "admitted" {
				got = append(got, names[i])
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s admits (-want +got):\n%s\n%s", constraint, diff, out)
		}
	}
}

// TestPageOfOpenShift holds that an API server takes the commands of the page.
func TestPageOfOpenShift(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.typed(t, "openshift")
	s.shows(t, "kubediag-manager kubediag-test", "rolebinding", "kubediag-manager-scc", "-n=kubediag", "-o=jsonpath={.subjects[*].name}")
}

// TestTalos makes the configuration of a new Talos cluster with Talos' own library, and has an API server admit pods by it.
func TestTalos(t *testing.T) {
	t.Parallel()
	var made struct {
		Mounts []struct {
			Destination, Source string
			Options             []string
		}
		Plugins map[string]map[string]any
	}
	must(t, json.Unmarshal([]byte(run(t, nil, built(t, "talos"), root+"/config/integrations/talos.yaml")), &made))
	agent := podOf(t, template(t, "kubediag")["DaemonSet kubediag-agent"])
	path := agent.Spec.Volumes[0].HostPath.Path
	if m := made.Mounts; len(m) != 1 || m[0].Source != path || m[0].Destination != path || !slices.Contains(m[0].Options, "rw") {
		t.Errorf("the kubelet's container has the mounts %+v, want the agent's directory %q", m, path)
	}
	config, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
		"plugins": []any{map[string]any{"name": "PodSecurity", "configuration": made.Plugins["PodSecurity"]}},
	})
	file := filepath.Join(t.TempDir(), "admission.json")
	if err == nil {
		err = os.WriteFile(file, config, 0o600)
	}
	must(t, err)
	s := startServerWith(t, cluster.Options{APIServerArgs: []string{"--admission-control-config-file=" + file}})

	pod := filepath.Join(t.TempDir(), "pod.json")
	text, err := json.Marshal(agent)
	if err == nil {
		err = os.WriteFile(pod, text, 0o600)
	}
	must(t, err)
	s.kubectl(t, "create", "namespace", "plain")
	out, err := call(t, cluster.Kubectl, s.kubeconfig, "create", "--dry-run=server", "-n=plain", "-f", pod)
	if err == nil || !strings.Contains(out, `violates PodSecurity "baseline:latest"`) {
		t.Errorf("the agent's pod in a namespace without labels: %v\n%s", err, out)
	}
	s.typed(t, "talos")
	s.kubectl(t, "create", "--dry-run=server", "-n=kubediag", "-f", pod)
}

// TestPageOfGKEAutopilot holds that an API server takes the commands of the page, that the agent's pod asks GKE for an allowlist, and that
// it breaks no other constraints of Autopilot than those that the page names.
func TestPageOfGKEAutopilot(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	out := s.typed(t, "gke-autopilot")
	if !strings.Contains(out, "daemonset.apps/kubediag-agent created (server dry run)") {
		t.Errorf("the DaemonSet is not tried: %s", out)
	}
	s.shows(t, "system-node-critical", "resourcequota", "-n=kubediag", "-o=yaml")

	asks := template(t, "kubediag", `--set-string=agent.podAnnotations.cloud\.google\.com/generate-allowlist=true`)
	agent := podOf(t, asks["DaemonSet kubediag-agent"])
	if got := agent.Annotations["cloud.google.com/generate-allowlist"]; got != "true" {
		t.Errorf("the annotation is %q", got)
	}
	less := podOf(t, template(t, "kubediag", "--values="+root+"/config/integrations/unprivileged.yaml")["DaemonSet kubediag-agent"])
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want []string
	}{
		"agent":           {agent, []string{"autogke-disallow-hostnamespaces", "autogke-disallow-privilege", "autogke-no-write-mode-hostpath"}},
		"agent with less": {less, []string{"autogke-default-linux-capabilities", "autogke-disallow-hostnamespaces", "autogke-no-write-mode-hostpath"}},
	} {
		if diff := cmp.Diff(c.want, brokenConstraints(c.pod.Spec)); diff != "" {
			t.Errorf("%s breaks (-want +got):\n%s", name, diff)
		}
	}
}

// autopilotCapabilities are those that Autopilot lets every container have, by its documents.
var autopilotCapabilities = strings.Fields("SETPCAP MKNOD AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT " +
	"SETFCAP SYS_PTRACE")

// brokenConstraints are the constraints of Autopilot that a pod breaks, by the names that an allowlist has for them.
func brokenConstraints(pod corev1.PodSpec) []string {
	broken := map[string]bool{"autogke-disallow-hostnamespaces": pod.HostPID || pod.HostIPC || pod.HostNetwork}
	for _, v := range pod.Volumes {
		for _, m := range pod.Containers[0].VolumeMounts {
			if v.HostPath != nil && m.Name == v.Name && !m.ReadOnly {
				broken["autogke-no-write-mode-hostpath"] = true
			}
		}
	}
	for _, c := range pod.Containers {
		broken["autogke-disallow-privilege"] = c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		for _, p := range c.Ports {
			broken["autogke-no-host-port"] = broken["autogke-no-host-port"] || p.HostPort != 0
		}
		if c.SecurityContext.Capabilities == nil {
			continue
		}
		for _, capability := range c.SecurityContext.Capabilities.Add {
			if !slices.Contains(autopilotCapabilities, string(capability)) {
				broken["autogke-default-linux-capabilities"] = true
			}
		}
	}
	maps.DeleteFunc(broken, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(broken))
}
