// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
)

// TestHealthyPodIsLeftAlone runs the walkthrough against a pod that has nothing wrong with it, on a kubelet without
// the bug.
func TestHealthyPodIsLeftAlone(t *testing.T) {
	e := start(t, cluster.Options{Kubelet: cluster.Kubernetes136})
	pod := e.deploy(t)
	before := e.mounts(t)

	e.kubectl(t, "", "apply", "-f", samples)
	e.kubectl(t, fmt.Sprintf(diagnosis, e.NodeName(), pod.Name), "apply", "-f", "-")
	d := e.finished(t)

	if d.Status.Phase != v1.DiagnosisFailed || d.Status.Outcome != v1.OutcomeNoFault {
		t.Errorf("phase %q, outcome %q", d.Status.Phase, d.Status.Outcome)
	}
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if c == nil || c.Status != "False" || c.Reason != v1.ReasonNotApplicable || !strings.Contains(c.Message, "subpath-remount-diagnoser") {
		t.Errorf("condition Complete is %+v", c)
	}
	last := d.Status.Operations[len(d.Status.Operations)-1]
	if last.Operation != "subpath-remount-diagnoser" || last.Phase != v1.OperationNotApplicable || last.Message == "" || last.Attempts != 1 {
		t.Errorf("the last operation is %+v", last)
	}
	after := e.mounts(t)
	for _, m := range before {
		if !slices.ContainsFunc(after, func(o mountinfo.Mount) bool { return o.ID == m.ID && o.Point == m.Point }) {
			t.Errorf("mount %d at %q has gone", m.ID, m.Point)
		}
	}
	now := e.podOf(t.Context(), "core2")
	if now == nil || now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod was touched: %+v", now)
	}
	t.Logf("why not: %s", last.Message)
}
