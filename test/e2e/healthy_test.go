// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/cluster"
)

// TestKubeletWithoutTheBug has nothing to heal: the kubelet itself renews the binds of subPaths.
func TestKubeletWithoutTheBug(t *testing.T) {
	t.Parallel()
	checkWithoutTheBug(t, cluster.Options{Kubelet: cluster.Kubernetes137, SyncFrequency: time.Second})
}

func checkWithoutTheBug(t *testing.T, o cluster.Options) *env {
	e := start(t, o)
	t.Run("a healthy pod is left alone", e.healthyPodIsLeftAlone)
	t.Run("the sentinel leaves the binds to the kubelet", e.bindsAreLeftToTheKubelet)
	return e
}

// healthyPodIsLeftAlone runs the walkthrough against a pod that has nothing wrong with it.
func (e *env) healthyPodIsLeftAlone(t *testing.T) {
	pod := e.deploy(t)
	before := e.mounts(t)

	e.Kubectl(t, "", "apply", "-f", samples)
	d := e.walkThrough(t, pod)

	checkEnd(t, d, v1.DiagnosisFailed, v1.OutcomeNoFault)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if c == nil || c.Status != "False" || c.Reason != v1.ReasonNotApplicable || !strings.Contains(c.Message, "subpath-remount-diagnoser") {
		t.Errorf("condition Complete is %+v", c)
	}
	last := d.Status.Operations[len(d.Status.Operations)-1]
	if last.Operation != "subpath-remount-diagnoser" || last.Phase != v1.OperationNotApplicable || last.Message == "" || last.Attempts != 1 {
		t.Errorf("the last operation is %+v", last)
	}
	e.checkOtherMounts(t, before, func(string) bool { return false })
	now := e.podOf(t.Context(), "core2")
	if now == nil || now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod was touched: %+v", now)
	}
	t.Logf("why not: %s", last.Message)
}

// bindsAreLeftToTheKubelet updates everything under a sentinel that may heal.
func (e *env) bindsAreLeftToTheKubelet(t *testing.T) {
	e.SetSentinel(t, "Automatic")
	s := e.deploySubPaths(t)
	s.Wait(t, "the sentinel to watch", func(context.Context) bool { return s.metric(t, "kubediag_sentinel_watching") == 1 })
	before := s.binds(t)
	s.update(t)
	s.Wait(t, "the source of every bind to be deleted", func(context.Context) bool { return s.allStale(t) })
	report, status := s.scan(t)
	if status != 0 || report.Looked.RenewedByKubelet != len(kinds) {
		t.Errorf("scan ends with status %d: %+v", status, report)
	}
	for name, b := range before {
		if m := s.binds(t)[name]; m.ID != b.ID || m.Point != b.Point {
			t.Errorf("mount %d at %q is mount %d at %q now", b.ID, b.Point, m.ID, m.Point)
		}
	}
	s.restart(t)
	for _, event := range s.events(t) {
		if event.Source.Component == "kubediag-agent" {
			t.Errorf("the agent says %s: %s", event.Reason, event.Message)
		}
	}
	for _, name := range []string{"kubediag_faults", "kubediag_repairs_total"} {
		if n := s.metric(t, name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
}
