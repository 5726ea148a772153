// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
)

// leaseOf is the Lease of an agent that has renewed it some time before noon.
func leaseOf(node string, before time.Duration) coordinationv1.Lease {
	l := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &metav1.MicroTime{Time: noon.Add(-before)}}}
	l.Name = v1.AgentLeaseName(node)
	return l
}

// daemonSetFor is a DaemonSet of agents that has to run on some nodes.
func daemonSetFor(nodes int32, env []corev1.EnvVar, args ...string) appsv1.DaemonSet {
	set := appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: nodes}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: agentContainer, Env: env, Args: args}}
	return set
}

func TestCoverage(t *testing.T) {
	t.Parallel()
	never := leaseOf("c", 0)
	never.Spec.RenewTime = nil
	for name, tc := range map[string]struct {
		nodes []string // nil: they may not be listed
		sets  []appsv1.DaemonSet
		found []coordinationv1.Lease
		want  string
	}{
		"all watched":           {nodes: []string{"a", "b"}, found: []coordinationv1.Lease{leaseOf("a", time.Second), leaseOf("b", 30*time.Second)}},
		"a clock that is ahead": {nodes: []string{"a"}, found: []coordinationv1.Lease{leaseOf("a", -time.Hour)}},
		"no agent at all":       {nodes: []string{"node-1"}, want: "1 of 1 nodes is not watched: node-1 (no agent)"},
		"one is silent": {nodes: []string{"node-1"}, found: []coordinationv1.Lease{leaseOf("node-1", 3*time.Minute)},
			want: "1 of 1 nodes is not watched: node-1 (agent silent for 3m)"},
		"some are": {nodes: []string{"a", "b", "c", "d"}, found: []coordinationv1.Lease{leaseOf("a", 0), leaseOf("b", time.Hour), never},
			want: "3 of 4 nodes are not watched: d (no agent), b (agent silent for 60m), c (agent that has never renewed its Lease)"},
		"a node that is gone": {nodes: []string{"a"}, found: []coordinationv1.Lease{leaseOf("a", 0), leaseOf("gone", time.Hour)}},
		"no nodes":            {nodes: []string{}},

		"the DaemonSet runs":        {sets: []appsv1.DaemonSet{daemonSetFor(1, nil)}, found: []coordinationv1.Lease{leaseOf("a", 0), leaseOf("gone", time.Hour)}},
		"it is there for no node":   {sets: []appsv1.DaemonSet{daemonSetFor(0, nil)}, want: "no node is watched: the DaemonSet of agents is there for 0 nodes"},
		"its agents have not begun": {sets: []appsv1.DaemonSet{daemonSetFor(2, nil)}, want: "2 of 2 nodes are not watched"},
		"one of them is silent": {sets: []appsv1.DaemonSet{daemonSetFor(2, nil)}, found: []coordinationv1.Lease{leaseOf("a", 0), leaseOf("b", time.Hour)},
			want: "1 of 2 nodes is not watched; the last agents that were heard: b (agent silent for 60m)"},
	} {
		a := compareDaemonSets(tc.sets, tc.found, noon)
		if tc.nodes != nil {
			a = compareNodes(tc.nodes, tc.found, noon)
		}
		if got := a.text(silentAgent.String); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestDoctorNamesAgentsThatWereKilled: they are alive, and list in pages since.
func TestDoctorNamesAgentsThatWereKilled(t *testing.T) {
	t.Parallel()
	careful := leaseOf("b", 0)
	careful.Labels = map[string]string{v1.LabelPages: "true"}
	got := compareNodes([]string{"a", "b"}, []coordinationv1.Lease{leaseOf("a", 0), careful}, noon).results()
	if len(got) != 2 || got[0].Level != levelWarn || !strings.HasPrefix(got[0].Text, "1 node whose agent was probably killed for memory, and lists") ||
		!strings.HasSuffix(got[0].Text, " in pages since: b") || got[1].Level != levelOK {
		t.Errorf("doctor says %+v", got)
	}
	if got := compareNodes([]string{"a"}, []coordinationv1.Lease{leaseOf("a", 0)}, noon).results(); len(got) != 1 || got[0].Level != levelOK {
		t.Errorf("doctor says %+v of an agent that was not killed", got)
	}
}

// TestSentinelMode: a flag counts more than the variable.
func TestSentinelMode(t *testing.T) {
	t.Parallel()
	off := []corev1.EnvVar{{Name: modeVariable, Value: "Off"}}
	for name, tc := range map[string]struct {
		set  appsv1.DaemonSet
		want string
	}{
		"neither": {daemonSetFor(1, nil, "--node-name=a"), "Observe"}, "variable": {daemonSetFor(1, off), "Off"},
		"flag": {daemonSetFor(1, nil, "--sentinel-mode=Off"), "Off"}, "both": {daemonSetFor(1, off, "--sentinel-mode=Observe"), "Observe"},
	} {
		if got := sentinelModeOf(&tc.set); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestFollowProblems: agents that die while faults are followed are reported once, and so are more that die, and their return.
func TestFollowProblems(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		off := fixedProblem("off")
		answers := [][]watchProblem{
			nil, {{"a", "a for 1m"}, off}, {{"a", "a for 2m"}}, {{"a", "a for 3m"}, {"a, b", "a for 3m, b for 1m"}}, nil, nil, {fixedProblem("gone")},
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ask := func(context.Context) ([]watchProblem, error) {
			now := answers[0]
			if answers = answers[1:]; len(answers) == 0 {
				time.AfterFunc(time.Second, cancel)
				return nil, errors.New(now[0].text)
			}
			return now, nil
		}
		var said []string
		last := followProblems(ctx, ask, nil, func(mark string, _ terminal.Colour, text string) { said = append(said, mark+" "+text) })
		if want := []string{"! a for 1m", "! off", "! a for 3m, b for 1m", "✓ all nodes are watched again", "! gone"}; !slices.Equal(said, want) || !slices.Equal(problemTexts(last), []string{"gone"}) {
			t.Errorf("said %q, want %q; last %q", said, want, last)
		}
	})
}
