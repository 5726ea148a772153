// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
)

func TestReportIsMarkdown(t *testing.T) {
	t.Parallel()
	diagnosis := &v1.Diagnosis{Spec: v1.DiagnosisSpec{NodeName: "worker-7"}}
	diagnosis.Namespace, diagnosis.Name = "shop", "web-4k2fd"
	s := &diagnosis.Status
	s.Outcome, s.Summary = v1.OutcomePlanned, "Found *one* | two"
	s.Faults = []v1.Fault{{Code: "StaleSubPath", State: v1.FaultPresent, Evidence: []string{"a `quoted` | fact\x1b"}, Mount: &v1.Mount{ID: 7, Point: "/p"}}}
	s.OperationResults = map[string]string{"key": "```\nfence\n", "long": strings.Repeat("x", maxResultLength+1)}
	s.Artifacts = []v1.Artifact{{Key: "collector.system.mountinfo", SizeBytes: 7, Path: "/p", SHA256: "ab"}}
	s.Operations = []v1.OperationRun{{ID: 3, Operation: "heal", Phase: v1.OperationSucceeded, Attempts: 2, Actions: []v1.Action{
		{Kind: "Unmount", Target: "/p", Phase: v1.ActionDone, Calls: []v1.ActionCall{{Name: "umount2", Arguments: "/p, MNT_DETACH", Result: "ok"}}},
	}}}
	s.Decision = &v1.Decision{Mode: "Automatic", Reason: "policy careful"}
	s.Approval = &v1.ApprovalStatus{Name: "web-1", ApproveTime: &metav1.Time{Time: time.Unix(0, 0)}, Approver: "anna"}
	s.Plan = &v1.Plan{Hash: "ab", Operation: "heal", Lossless: true, Changes: []string{"boot \"b\"", "Unmount `/p`"}}
	diagnosis.Labels = map[string]string{v1.LabelOrigin: v1.OriginPolicy}
	diagnosis.Annotations = map[string]string{v1.AnnotationPolicies: "careful,slow"}
	got := Report(diagnosis)
	for _, want := range []string{
		"# Diagnosis shop/web-4k2fd\n", "**Planned**: Found \\*one\\* \\| two\n", "1. **StaleSubPath**, Present\n", "   - mount `id 7, namespace 0, device , , root , at /p`\n",
		"   - `` a `quoted` \\| fact\\x1b ``\n", "````\n```\nfence\n````\n", "The first 4096 of 4097 bytes.\n", "| `collector.system.mountinfo` | 7 | `/p` | `ab` | no |\n",
		"| 3 | `heal` | Succeeded | 2 |", "## Calls\n\n| action | call | arguments | result |\n| --- | --- | --- | --- |\n| 1 | `umount2` | `/p, MNT_DETACH` | `ok` |\n",
		"\nThe hash of the plan covers exactly these lines:\n\n```\nboot \"b\"\nUnmount `/p`\n```\n",
		"| origin | `policy` |\n| policies | `careful,slow` |\n| allowed by | `Automatic: policy careful` |\n",
		"| approved by | `anna, 1970-01-01T00:00:00Z, RecoveryApproval web-1` |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

// TestManyAreCounted: findings, plan and results of 300 binds take a line each, and the details have all of them.
func TestManyAreCounted(t *testing.T) {
	t.Parallel()
	d, lines := &v1.Diagnosis{}, []string{"boot \"b\""}
	var found []*v1.Fault
	run := v1.OperationRun{}
	for i := range 300 {
		at := fmt.Sprintf("/k/%d", i)
		found = append(found, &v1.Fault{Code: "StaleSubPath", Volume: "conf", Container: fmt.Sprint("c", i),
			Pod: &v1.FaultPod{Namespace: "shop", Name: fmt.Sprint("web-", i/3)}, Evidence: []string{"inode " + at}})
		run.Actions = append(run.Actions, v1.Action{Kind: "Unmount", Target: at, Safety: at + " is stale", Phase: v1.ActionDone, Message: "unmounted"})
		lines = append(lines, "Unmount mount "+at)
	}
	d.Status.Operations = []v1.OperationRun{run}
	actions, none := Actions(d, false), func(m string) string { return ": " + m }
	if got, want := Faults(terminal.Screen{}, found, true), "  ✗ StaleSubPath: volume conf: 300 faults of 100 pods\n"; !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 3 {
		t.Errorf("faults %q", got)
	}
	if got := PlanText(terminal.Screen{}, actions, false) + Changes(terminal.Screen{}, lines, false); got != "   would unmount 300 mounts\nThe hash of the plan covers 301 lines.\n" {
		t.Errorf("plan %q", got)
	}
	if got := Results(terminal.Screen{}, actions, none); got != "  ✓ unmount 300 mounts: unmounted\n" {
		t.Errorf("results %q", got)
	}
	if !Folded(actions) || Folded(actions[:maxAlike]) {
		t.Error("it is not said when something is left out")
	}
	all := PlanText(terminal.Screen{}, actions, true) + Changes(terminal.Screen{}, lines, true)
	for i := range 300 {
		if !strings.Contains(all, fmt.Sprintf("would unmount /k/%d\n", i)) || !strings.Contains(all, fmt.Sprintf("\n  Unmount mount /k/%d\n", i)) {
			t.Errorf("bind %d is not in the details", i)
		}
	}
}

// TestTablesFit: no line is wider than the screen, and no column is cut that needs not be.
func TestTablesFit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 90)
	for _, tc := range []struct{ subject, volume string }{{long, "v"}, {"s", long}, {long, long}, {"s", "v"}} {
		table := Table{Rows: []Row{{Cells: []string{"#", "FAULT", "HURTS", "POD", "VOLUME"}},
			{Cells: []string{"1", "StaleSubPath", "now", tc.subject, tc.volume}, Below: "why it is so"}}, Painted: 2, Subject: 3, Numbered: true}
		for _, width := range []int{0, 40, 59, 60, 80, 200} {
			got := table.Text(terminal.Screen{Width: width})
			for line := range strings.Lines(got) {
				if n := terminal.Columns(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
					t.Errorf("width %d: %d columns: %q", width, n, line)
				}
			}
			if width == 0 && (!strings.Contains(got, tc.subject) || !strings.Contains(got, tc.volume)) || !strings.Contains(got, "why it is so") {
				t.Errorf("width %d: %s", width, got)
			}
		}
	}
}

// TestDuration has no more digits than a reader needs.
func TestDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-1: "0 ms", 0: "0 ms", 450 * time.Microsecond: "0.5 ms", 9900 * time.Microsecond: "9.9 ms", 12345 * time.Microsecond: "12 ms", time.Second: "1.0 s", 61 * time.Second: "61.0 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
