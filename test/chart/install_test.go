// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package chart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
)

// server is an API server without anything of kubediag, by its kubeconfig, and the helm that is used there.
type server struct {
	kubeconfig string
	program    func(context.Context) (string, error)
}

func startServer(t *testing.T) server {
	t.Helper()
	return startServerWith(t, cluster.Options{ControlPlane: apitest.Version()})
}

func startServerWith(t *testing.T, o cluster.Options) server {
	t.Helper()
	c, err := cluster.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server{c.Kubeconfig(), cluster.Helm}
}

func (s server) helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := call(t, s.program, s.kubeconfig, args...)
	must(t, err)
	return out
}

func (s server) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := call(t, cluster.Kubectl, s.kubeconfig, args...)
	must(t, err)
	return out
}

// refused fails the test unless helm refuses with a text.
func (s server) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, err := call(t, s.program, s.kubeconfig, args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%q: %v, want %q\n%s", args, err, want, out)
	}
}

// shows fails the test unless an object, as kubectl prints it, has a text.
func (s server) shows(t *testing.T, want string, args ...string) {
	t.Helper()
	if out := s.kubectl(t, append([]string{"get"}, args...)...); !strings.Contains(out, want) {
		t.Errorf("%q: there is no %q in\n%s", args, want, out)
	}
}

// gone fails the test unless an object is not there.
func (s server) gone(t *testing.T, args ...string) {
	t.Helper()
	if out := s.kubectl(t, append([]string{"get", "--ignore-not-found"}, args...)...); out != "" {
		t.Errorf("%q is still there: %s", args, out)
	}
}

// checks fails the test if the API server has admission policies, and none of them limits the writes of agents.
func (s server) checks(t *testing.T) {
	t.Helper()
	if apitest.HasPolicies() {
		s.shows(t, "kubediag-agent-node", "validatingadmissionpolicies")
	}
}

// removed fails the test if anything of a release that was uninstalled is there.
func (s server) removed(t *testing.T) {
	t.Helper()
	kinds := "clusterrole,clusterrolebinding,daemonset,deployment"
	if apitest.HasPolicies() {
		kinds += ",validatingadmissionpolicy"
	}
	s.gone(t, kinds, "-A", "-l=app.kubernetes.io/name=kubediag")
}

// may waits until the API server says whether a ServiceAccount may do something: it learns of roles a moment after they are there.
func (s server) may(t *testing.T, want, account string, what ...string) {
	t.Helper()
	args := append([]string{"auth", "can-i", "--as=system:serviceaccount:" + account}, what...)
	apitest.Eventually(t, func() error {
		out, err := call(t, cluster.Kubectl, s.kubeconfig, args...) // its status is 1 for no
		if lines := strings.Split(strings.TrimSpace(out), "\n"); lines[len(lines)-1] != want {
			return fmt.Errorf("%q: %q, want %q: %w", args, out, want, err)
		}
		return nil
	})
}

// nextChart is the chart as a later version could have it: other images, and one more field in a CustomResourceDefinition.
func nextChart(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "kubediag")
	must(t, os.CopyFS(dir, os.DirFS(chartDir)))
	edit := func(name string, change func(text []byte) []byte) {
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, change(text), 0o600)
		}
		must(t, err)
	}
	edit("Chart.yaml", func(text []byte) []byte {
		var about map[string]any
		must(t, yaml.Unmarshal(text, &about))
		about["version"], about["appVersion"] = "99.0.0", "v99.0.0"
		text, err := yaml.Marshal(about)
		must(t, err)
		return text
	})
	edit("config/crd/diagnosis.kubediag.org_diagnoses.yaml", func(text []byte) []byte {
		old, field := "              activeDeadlineSeconds:\n", "              addedLater:\n                type: string\n"
		if !strings.Contains(string(text), old) {
			t.Fatalf("there is no %q", old)
		}
		return []byte(strings.Replace(string(text), old, field+old, 1))
	})
	return dir
}

// TestLifeOfARelease installs the chart, upgrades it, uninstalls it, and takes over what kubectl has applied.
func TestLifeOfARelease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const field = "-o=jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.addedLater.type}"
	const images = "-o=jsonpath={.spec.template.spec.containers[*].image} {.spec.template.spec.containers[*].args}"

	out := s.helm(t, "install", "kubediag", chartDir, "-n", "elsewhere", "--create-namespace", loaded, "--set=agent.flags.workers=32",
		"--values="+root+"/config/integrations/openshift.yaml", "--set=components.eviction=true,policies.criticalPods=true,recovery.mode=Observe")
	notes := []string{"kubectl -n elsewhere rollout status daemonset/kubediag-agent", "There is no RecoveryPolicy yet"}
	if !apitest.HasPolicies() {
		notes = append(notes, needsNewer)
	}
	for _, want := range notes {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in the notes of helm: %s", want, out)
		}
	}
	s.shows(t, "localhost/kubediag/agent:v0", "daemonset", "kubediag-agent", "-n=elsewhere", images)
	s.shows(t, "system:openshift:scc:privileged", "rolebinding", "kubediag-agent-scc", "-n=elsewhere", "-o=jsonpath={.roleRef.name}")
	s.may(t, "yes", "elsewhere:kubediag-agent", "create", "leases.coordination.k8s.io", "-n=elsewhere")
	s.may(t, "yes", "elsewhere:kubediag-agent", "create", "pods", "--subresource=eviction", "-n=default")
	s.may(t, "yes", "elsewhere:kubediag-manager", "patch", "diagnoses.diagnosis.kubediag.org", "-n=default")
	s.may(t, "no", "kubediag:kubediag-agent", "create", "pods", "--subresource=eviction", "-n=default")
	s.refused(t, "cannot be imported into the current release", "install", "second", chartDir, "-n", "third", "--create-namespace", loaded)

	s.kubectl(t, "wait", "--for=condition=Established", "crd/diagnoses.diagnosis.kubediag.org")
	s.kubectl(t, "apply", "-f", root+"/config/samples/diagnosis.yaml")
	s.gone(t, "crd", "diagnoses.diagnosis.kubediag.org", field)
	s.helm(t, "upgrade", "kubediag", nextChart(t), "-n", "elsewhere", "--reset-then-reuse-values",
		"--set=components.eviction=false,recovery.mode=Approve")
	s.shows(t, `localhost/kubediag/agent:v99.0.0 ["--workers=32"]`, "daemonset", "kubediag-agent", "-n=elsewhere", images)
	s.shows(t, "localhost/kubediag/manager:v99.0.0", "deployment", "kubediag-manager", "-n=elsewhere", images)
	s.shows(t, "string", "crd", "diagnoses.diagnosis.kubediag.org", field)
	s.gone(t, "clusterrole", "kubediag-agent-evictor")
	s.shows(t, "Approve", "recoverypolicy", "kubediag-default", "-o=jsonpath={.spec.mode}")
	s.checks(t)

	s.helm(t, "upgrade", "kubediag", nextChart(t), "-n", "elsewhere", "--reset-then-reuse-values", "--set=recovery.mode=Off")
	s.shows(t, "Off", "recoverypolicy", "kubediag-default", "-o=jsonpath={.spec.mode}")

	s.helm(t, "uninstall", "kubediag", "-n", "elsewhere")
	s.removed(t)
	s.shows(t, "subpath-remount-diagnosis", "diagnoses", "-n=default")
	s.gone(t, "recoverypolicy", "kubediag-default")

	s.kubectl(t, "apply", "-k", root+"/config/default")
	s.refused(t, "cannot be imported into the current release", "install", "kubediag", chartDir, "-n", "kubediag", loaded)
	s.helm(t, "install", "kubediag", chartDir, "-n", "kubediag", "--take-ownership", loaded)
	s.shows(t, "localhost/kubediag/agent:v0", "daemonset", "kubediag-agent", "-n=kubediag", images)
	s.shows(t, "kubediag", "crd", "diagnoses.diagnosis.kubediag.org", `-o=jsonpath={.metadata.annotations.meta\.helm\.sh/release-namespace}`)
}

// needsNewer is in the notes of helm where API servers have no such checks.
const needsNewer = "policies.agentNode is off: it needs Kubernetes 1.30"

// TestUpgradeAddsNoPolicies holds that an upgrade which sets nothing adds no check of the API server, and says so, or that no check can be added.
func TestUpgradeAddsNoPolicies(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.helm(t, "install", "kubediag", chartDir, "-n", "kubediag", "--create-namespace", loaded, "--set=policies.agentNode=off,policies.diagnosisRights=off")
	out := s.helm(t, "upgrade", "kubediag", chartDir, "-n", "kubediag", "--reset-values", loaded)
	want := "policies.agentNode is off: an upgrade does not add it. To add it: --set policies.agentNode=on"
	if !apitest.HasPolicies() {
		want = needsNewer
	}
	if !strings.Contains(out, want) {
		t.Errorf("there is no %q in the notes of helm: %s", want, out)
	}
	if !apitest.HasPolicies() {
		return
	}
	s.gone(t, "validatingadmissionpolicies")
	s.helm(t, "upgrade", "kubediag", chartDir, "-n", "kubediag", "--reset-then-reuse-values", "--set=policies.agentNode=on")
	s.shows(t, "kubediag-agent-node", "validatingadmissionpolicies")
	s.helm(t, "upgrade", "kubediag", chartDir, "-n", "kubediag", "--reset-values", loaded)
	s.shows(t, "kubediag-agent-node", "validatingadmissionpolicies")
}

// TestPodSecurityRefuses holds that nothing is installed in a namespace that refuses the agents' pods, and that the command which helm
// prints allows them.
func TestPodSecurityRefuses(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.kubectl(t, "create", "namespace", "strict")
	s.kubectl(t, "label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline")
	const label = "label --overwrite namespace strict pod-security.kubernetes.io/enforce=privileged"
	s.refused(t, "kubectl "+label, "install", "kubediag", chartDir, "-n", "strict", loaded)
	s.gone(t, "crd")
	s.kubectl(t, strings.Fields(label)...)
	s.helm(t, "install", "kubediag", chartDir, "-n", "strict", loaded)
}
