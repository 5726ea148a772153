// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestPlanOfAPodThatGoes: nothing is planned while a part of the pod may run, or while that is not known.
func TestPlanOfAPodThatGoes(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	dead := Bind{
		Verdict: Stale, State: mount.State{FSType: "fuse.memory"},
		comparison: comparison{Asked: &answers{Bind: probe.Answer{State: probe.Stale, Errno: sys.ESTALE}, Volume: &probe.Answer{}}},
	}
	dead.Container = "app"
	unknown, unnamed := dead, pod.DeepCopy()
	unnamed.UID = "" // of which no process can be found
	unknown.AddOutlook(t.Context(), kubelet.Habits{}, nil, unnamed)
	if !unknown.KeepsPod || !strings.Contains(unknown.StillRuns, "is not known: ") {
		t.Fatalf("outlook %+v, want one that is not known", unknown.Outlook)
	}
	for name, c := range map[string]struct {
		outlook Outlook
		plans   bool
	}{
		"it runs":      {outlook: Outlook{KeepsPod: true, StillRuns: `process 7, which is in a control group of the pod`}},
		"is not known": {outlook: unknown.Outlook},
		"it has ended": {outlook: Outlook{KeepsPod: true}, plans: true},
	} {
		b := dead
		b.Outlook = c.outlook
		found := b.Finding(pod, 1)
		action, refusal := b.Plan(pod, found)
		if planned := action.Kind == fault.Unmount; planned != c.plans || planned != (refusal == "") || !strings.Contains(refusal, c.outlook.StillRuns) {
			t.Errorf("%s: action %+v, refusal %q, want a plan: %v", name, action, refusal, c.plans)
		}
		of := found.Details
		if (of.Repair == fault.Unmount) != c.plans || of.KeepsPod != c.plans || (of.Refusal.Text == "") != c.plans {
			t.Errorf("%s: details %+v, want a repair: %v", name, of, c.plans)
		}
	}
}
