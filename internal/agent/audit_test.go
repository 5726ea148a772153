// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/sentinel"
)

// TestRepairsAreLogged: a line of the log has what the status has, for a Diagnosis and for the sentinel.
func TestRepairsAreLogged(t *testing.T) {
	t.Parallel()
	var lines []string
	log := funcr.NewJSON(func(line string) { lines = append(lines, line) }, funcr.Options{})
	o, _, _ := newTestObserver(t)
	o.log = log
	d := &v1.Diagnosis{}
	d.Namespace, d.Name, d.Labels = "team", "web", map[string]string{v1.LabelOrigin: v1.OriginTrigger}
	d.Status.Approval = &v1.ApprovalStatus{PlanHash: "0a", Name: "yes", Approver: "ann"}
	o.ActionEnded(d, "recover", pipeline.ActionEnd{Action: v1.Action{
		Kind: string(fault.Unmount), Target: "/m", Fault: "StaleSubPath", Phase: v1.ActionDone,
		Calls: []v1.ActionCall{{Name: "umount2", Arguments: "/m MNT_DETACH", Result: "ok"}},
	}})
	l := newTestSentinelObserver(o, sentinel.Automatic, "")
	l.log, l.record = log, func(sentinel.Repair, v1.Decision) string { return "sentinel-1" }
	r := repairOf(fault.Finding{Code: fault.StaleSubPath, Mount: fault.Mount{Point: "/m"}, Evidence: []string{"nlink 0"}}, nil)
	r.Calls, r.Proof = []calls.Call{{Name: "umount2", Arguments: "/m MNT_DETACH", Result: calls.OK}}, "the mount is gone"
	l.Repaired(r)
	want := [][]string{
		{`"origin":"trigger"`, `"diagnosis":"web"`, `"operation":"recover"`, `"action":"Unmount"`, `"result":"ok"`, `"approval":"yes"`, `"approver":"ann"`},
		{
			`"origin":"sentinel"`, `"diagnosis":"sentinel-1"`, `"mode":"Automatic"`, `"reason":"allowed by policy p"`,
			`"evidence":["nlink 0"]`, `"result":"ok"`, `"proof":"the mount is gone"`,
		},
	}
	if len(lines) != len(want) {
		t.Fatalf("lines %q", lines)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("line %s does not contain %s", lines[i], part)
			}
		}
	}
}
