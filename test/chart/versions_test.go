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
var helmVersions = []string{cluster.Helm310}

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
