// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/cluster"
)

// choices are values that a release can have for each part of the chart, of which the first is the default.
var choices = [][]string{
	{"", "components.eviction=true", "components.eviction=true,components.cordon=true", "components.alertReceiver=true", "components.protectedMetrics=true"},
	{"", "policies.agentNode=off,policies.diagnosisRights=off", "policies.agentNode=on,policies.diagnosisRights=on,policies.criticalPods=true"},
	{"", "recovery.mode=Observe", "recovery.mode=Automatic,recovery.breaker.failedRepairs=2"},
	{"", "monitoring.podMonitor=true,monitoring.prometheusRule=true,monitoring.dashboard=true,monitoring.tokenSecret.name=token,networkPolicy.enabled=true"},
}

// matrix is each combination of the choices, as arguments of helm.
func matrix() [][]string {
	all := [][]string{nil}
	for _, part := range choices {
		var next [][]string
		for _, before := range all {
			for _, value := range part {
				args := append([]string{}, before...)
				if value != "" {
					args = append(args, "--set="+value)
				}
				next = append(next, args)
			}
		}
		all = next
	}
	return all
}

// helmVersions are those beside helm 3.22, which the other tests use.
var helmVersions = []string{cluster.Helm310, cluster.Helm43}

func helmOf(version string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return cluster.HelmOf(ctx, version) }
}

// TestHelmVersionsAgree holds that each version of helm makes the same objects for each combination of values, and with many values. A third of
// them are for an API server that is old.
func TestHelmVersionsAgree(t *testing.T) {
	all := append(matrix(), []string{"--values", write(t, many)})
	if len(all) != 91 {
		t.Fatalf("there are %d combinations of values", len(all))
	}
	for i, args := range all {
		server := []string{"1.24.17", cluster.Kubernetes136, cluster.Kubernetes137}[i%3]
		args = append(args, served, "--kube-version="+server)
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			t.Parallel()
			want := rendered(t, "elsewhere", args...)
			for _, version := range helmVersions {
				if diff := cmp.Diff(want, renderedBy(t, helmOf(version), "elsewhere", args...)); diff != "" {
					t.Errorf("objects (-helm %s +helm %s):\n%s", cluster.Helm322, version, diff)
				}
			}
		})
	}
}

// TestHelmVersionsRefuse holds that a wrong value is refused by its name, in the words of each version.
func TestHelmVersionsRefuse(t *testing.T) {
	for value, name := range map[string]string{
		"evict=true": "evict", "components.eviction=yes": "eviction", "manager.replicas=two": "replicas", "agent.flags.worker=3": "worker",
		"manager.flags.diagnosis-ttl=10d": "diagnosis-ttl", "recovery.mode=automatic": "mode",
		"image.registry=": "image.registry: set the registry that has the images",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			for _, version := range helmVersions {
				_, err := call(t, helmOf(version), "", "template", chartDir, loaded, "--set="+value)
				if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("helm %s: %v, want %q", version, err, name)
				}
			}
		})
	}
}

// TestHelmVersionsInstall has each version of helm install the chart on an API server, upgrade it and uninstall it.
func TestHelmVersionsInstall(t *testing.T) {
	for _, version := range helmVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			s.program = helmOf(version)
			checkLife(t, s)
		})
	}
}

// checkLife installs the chart, upgrades it to a later version with other values, and uninstalls it.
func checkLife(t *testing.T, s server) {
	t.Helper()
	const images = "-o=jsonpath={.spec.template.spec.containers[*].image}"
	s.kubectl(t, "get", "--raw=/openapi/v2") // a new server takes its time for it, and helm 3.10 waits for 32 seconds
	out := s.helm(t, "install", "kubediag", chartDir, "-n", "elsewhere", "--create-namespace", loaded, "--set=components.eviction=true")
	if want := "kubectl -n elsewhere rollout status daemonset/kubediag-agent"; !strings.Contains(out, want) {
		t.Errorf("there is no %q in the notes of helm: %s", want, out)
	}
	s.shows(t, "localhost/kubediag/agent:v0", "daemonset", "kubediag-agent", "-n=elsewhere", images)
	s.checks(t)
	s.shows(t, "kubediag-agent-evictor", "clusterrole")
	s.kubectl(t, "wait", "--for=condition=Established", "crd/diagnoses.diagnosis.kubediag.org")
	s.kubectl(t, "apply", "-f", root+"/config/samples/diagnosis.yaml")

	s.helm(t, "upgrade", "kubediag", nextChart(t), "-n", "elsewhere", "--reset-values", loaded, "--set=recovery.mode=Approve")
	s.shows(t, "localhost/kubediag/manager:v99.0.0", "deployment", "kubediag-manager", "-n=elsewhere", images)
	s.shows(t, "Approve", "recoverypolicy", "kubediag-default", "-o=jsonpath={.spec.mode}")
	s.gone(t, "clusterrole", "kubediag-agent-evictor")
	s.checks(t)

	s.helm(t, "uninstall", "kubediag", "-n", "elsewhere")
	s.removed(t)
	s.gone(t, "recoverypolicy", "kubediag-default")
	s.shows(t, "subpath-remount-diagnosis", "diagnoses", "-n=default")
}
