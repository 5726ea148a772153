// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/install"
)

// people are a user who may diagnose, and one who may approve.
const people = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operators, namespace: kubediag}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kubediag-operator}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: olga}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: approvers, namespace: kubediag}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kubediag-approver}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: anna}
`

// wrongApproval approves a plan that no Diagnosis has.
const wrongApproval = `
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryApproval
metadata: {name: wrong, namespace: kubediag}
spec:
  diagnosis: {name: %s}
  planHash: "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
`

// approvals is a node where a policy wants each repair approved, with two pods that the policy selects.
type approvals struct {
	*subPaths
	other      *corev1.Pod // its plan is not approved
	stale      map[string]place
	otherStale place
}

// TestPolicyWantsApproval applies a policy with mode Approve on a node with the bug. Nothing is repaired before a person approves the
// plan of the one pod. Then exactly that plan is carried out, and the other pod stays as it is.
func TestPolicyWantsApproval(t *testing.T) {
	t.Parallel()
	e := start(t, withTheBug)
	e.link(t)
	e.Kubectl(t, "", "apply", "-f", "../../config/policy/diagnosis-rights.yaml")
	e.Kubectl(t, people, "apply", "-f", "-")
	a := &approvals{other: e.deploy(t), subPaths: e.deploySubPaths(t)}
	a.Kubectl(t, strings.Replace(policyOfTest, "Automatic", "Approve", 1), "apply", "-f", "-")
	a.update(t)
	a.Wait(t, "every bind to be stale", func(context.Context) bool { return a.allStale(t) })
	a.awaitDecision(t, "policy stale-subpaths wants approval")
	d := a.planned(t, "subpaths")
	a.checkPlan(t, d)
	a.Wait(t, "the list of faults to say how to approve", func(context.Context) bool {
		out, status := a.kubediag(t, "faults", "-n", "default")
		return status == 1 && strings.Contains(out, "\n  kubectl kubediag approve "+d.Name+" -n kubediag ")
	})
	a.makeStale(t, a.other, "second content")
	unapproved := a.planned(t, a.other.Name)
	a.stale, a.otherStale = a.places(t), a.mountedAt(t, a.otherPoint())

	a.unchanged(t, 15*time.Second)
	a.refused(t, d)
	a.unchanged(t, 2*time.Second)
	before, failures := a.mounts(t), a.witness(t)
	a.approve(t, d)
	d = a.awaitOutcome(t, d, v1.OutcomeHealed)
	a.checkAllRenewed(t, a.stale)
	a.checkOtherMounts(t, before, func(p string) bool { return strings.Contains(p, "/pods/"+a.uid()+"/volume-subpaths/") })
	a.checkStillRuns(t)
	a.restart(t)
	for _, failure := range failures() {
		t.Error(failure)
	}
	if a.mountedAt(t, a.otherPoint()) != a.otherStale {
		t.Error("the bind of the other pod was replaced")
	}
	a.awaitOutcome(t, unapproved, v1.OutcomeAwaitingApproval)
	a.checkTrail(t, d)
}

func (a *approvals) otherPoint() string {
	return filepath.Join(a.KubeletRoot(), "pods", string(a.other.UID), "volume-subpaths/logrotateconf/debian/0")
}

// planned waits until a pod has a Diagnosis of the policy that waits for its approval.
func (a *approvals) planned(t *testing.T, pod string) *v1.Diagnosis {
	t.Helper()
	var found *v1.Diagnosis
	began := time.Now()
	a.Wait(t, "the plan for pod "+pod+" to wait for its approval", func(ctx context.Context) bool {
		var all v1.DiagnosisList
		must(t, a.List(ctx, &all, client.InNamespace(install.Namespace), client.MatchingLabels{v1.LabelOrigin: v1.OriginPolicy}))
		all.Items = slices.DeleteFunc(all.Items, func(d v1.Diagnosis) bool { return d.Spec.PodReference == nil || d.Spec.PodReference.Name != pod })
		if len(all.Items) > 1 {
			t.Fatalf("there are %d Diagnoses of pod %s", len(all.Items), pod)
		}
		if len(all.Items) == 0 || all.Items[0].Status.Outcome != v1.OutcomeAwaitingApproval {
			return false
		}
		found = &all.Items[0]
		return true
	})
	t.Logf("the plan for pod %s waits after %.1f s", pod, time.Since(began).Seconds())
	if found.Spec.Mode != v1.ModeApprove || found.Annotations[v1.AnnotationPolicies] != "stale-subpaths" {
		t.Errorf("mode %q, annotations %v", found.Spec.Mode, found.Annotations)
	}
	return found
}

// lastActions are the actions of a Diagnosis, as the operation has them that planned last.
func lastActions(d *v1.Diagnosis) []v1.Action {
	if len(d.Status.Operations) == 0 {
		return nil
	}
	return d.Status.Operations[len(d.Status.Operations)-1].Actions
}

// checkPlan compares the plan with the stale binds.
func (a *approvals) checkPlan(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	stale := map[string]uint64{}
	for _, p := range a.places(t) {
		stale[p.point] = p.id
	}
	planned := map[string]uint64{}
	for _, action := range lastActions(d) {
		if action.Kind != "Unmount" || action.Phase != v1.ActionPlanned || action.Mount == nil || len(action.Calls) > 0 {
			t.Errorf("action %+v", action)
			continue
		}
		planned[action.Mount.Point] = action.Mount.ID
	}
	if !maps.Equal(planned, stale) || d.Status.Plan == nil || int(d.Status.Plan.Actions) != len(stale) || !d.Status.Plan.Lossless {
		t.Fatalf("planned are %v, stale are %v: %+v", planned, stale, d.Status.Plan)
	}
}

// unchanged watches for a while that no stale bind is touched.
func (a *approvals) unchanged(t *testing.T, during time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < during; time.Sleep(200 * time.Millisecond) {
		if now := a.places(t); !maps.Equal(now, a.stale) {
			t.Fatalf("without an approval, the binds %v are %v now", a.stale, now)
		}
	}
	if now := a.mountedAt(t, a.otherPoint()); now != a.otherStale {
		t.Fatalf("without an approval, the bind %v is %v now", a.otherStale, now)
	}
	a.checkStillRuns(t)
	if n := a.metric(t, "kubediag_repairs_total"); n != 0 {
		t.Errorf("%v repairs were tried", n)
	}
}

// refused tries what must not be enough: an approval of another plan, and one by a user without the right.
func (a *approvals) refused(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	a.Kubectl(t, fmt.Sprintf(wrongApproval, d.Name), "create", "-f", "-")
	given := &v1.RecoveryApproval{}
	a.Wait(t, "the approval of another plan to be refused", func(ctx context.Context) bool {
		must(t, a.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: "wrong"}, given))
		return given.Status.State == v1.ApprovalRefused
	})
	if want := "it approves another plan: that of Diagnosis kubediag/" + d.Name + " has hash " + d.Status.Plan.Hash; given.Status.Message != want {
		t.Errorf("the approval says %q, want %q", given.Status.Message, want)
	}
	args := []string{"approve", d.Name, "-n", d.Namespace}
	a.says(t, "another plan", 3, "waits with plan "+d.Status.Plan.Hash, append(args, "--plan-hash="+given.Spec.PlanHash, "--as=anna")...)
	a.says(t, "an operator approves", 3, `User "olga" cannot create resource "recoveryapprovals"`,
		append(args, "--plan-hash="+d.Status.Plan.Hash, "--as=olga")...)
	var all v1.RecoveryApprovalList
	must(t, a.List(t.Context(), &all))
	if len(all.Items) != 1 {
		t.Errorf("approvals %+v", all.Items)
	}
}

// advised reads in the Event on a Diagnosis how to approve its plan.
func (a *approvals) advised(t *testing.T, d *v1.Diagnosis) []string {
	t.Helper()
	var args []string
	a.Wait(t, "an Event on the Diagnosis to say how to approve it", func(ctx context.Context) bool {
		var events corev1.EventList
		must(t, a.List(ctx, &events, client.InNamespace(d.Namespace)))
		for _, e := range events.Items {
			if _, line, ok := strings.Cut(e.Message, " See: kubectl kubediag approve "); ok && e.InvolvedObject.UID == d.UID {
				args = append([]string{"approve"}, strings.Fields(line)...)
			}
		}
		return args != nil
	})
	return args
}

// approve does as the Event says, pastes the command that this prints, and follows the repair with the command that that one prints.
func (a *approvals) approve(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	out := a.says(t, "a plan to approve", 1, "", append(a.advised(t, d), "--as=anna")...)
	out = a.says(t, "the approval", 0, "", toPaste(t, out, `(approve .* --plan-hash=[0-9a-f]{64} --as=anna)`)...)
	a.says(t, "the repair", 0, "✓ Healed in ", toPaste(t, out, `(get .* -w --as=anna)  # follows the repair`)...)
}

// awaitOutcome waits until a Diagnosis has an outcome.
func (a *approvals) awaitOutcome(t *testing.T, d *v1.Diagnosis, want v1.Outcome) *v1.Diagnosis {
	t.Helper()
	now := &v1.Diagnosis{}
	a.Wait(t, fmt.Sprintf("Diagnosis %s to have outcome %s", d.Name, want), func(ctx context.Context) bool {
		must(t, a.Get(ctx, client.ObjectKeyFromObject(d), now))
		return now.Status.Outcome == want
	})
	return now
}

// checkTrail reads afterwards what was done, for whom, and what allowed it.
func (a *approvals) checkTrail(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	list := a.Kubectl(t, "", "get", "diag", "-n", d.Namespace, "-l", v1.LabelOrigin+"="+v1.OriginPolicy, "-o", "wide")
	t.Logf("kubectl get diag:\n%s", list)
	if !regexp.MustCompile(`(?m)^` + d.Name + ` .* StaleSubPath +Healed .* Approve +policy `).MatchString(list) {
		t.Error("the list does not show the repair")
	}
	list = a.Kubectl(t, "", "get", "approval", "-n", d.Namespace, "-o", "wide")
	t.Logf("kubectl get approval:\n%s", list)
	given := &v1.RecoveryApproval{}
	must(t, a.Get(t.Context(), client.ObjectKey{Namespace: d.Namespace, Name: d.Status.Approval.Name}, given))
	if given.Status.State != v1.ApprovalUsed || given.Status.DiagnosisUID != d.UID || given.UID != d.Status.Approval.UID ||
		d.Status.Approval.ApproveTime == nil || d.Status.Approval.Approver != "anna" || !strings.Contains(list, " Used ") || !strings.Contains(list, " Refused ") {
		t.Errorf("approval %+v of %+v", given.Status, d.Status.Approval)
	}
	actions := lastActions(d)
	for _, action := range actions {
		if action.Phase != v1.ActionDone || action.Already || len(action.Calls) == 0 {
			t.Errorf("action %+v", action)
		}
		for _, call := range action.Calls {
			if call.Result != "ok" {
				t.Errorf("call %+v", call)
			}
		}
	}
	if len(actions) != len(kinds) {
		t.Errorf("%d actions", len(actions))
	}
	report, status := a.kubediag(t, "report", d.Name, "-n", d.Namespace)
	t.Logf("report:\n%s", report)
	for _, want := range []string{
		"\n| origin | `policy` |\n| policies | `stale-subpaths` |\n", "\n| approved by | `anna, ", "Hash `" + d.Status.Plan.Hash + "`", "\n## Calls\n",
	} {
		if status != 0 || !strings.Contains(report, want) {
			t.Errorf("report ends with status %d, without %q", status, want)
		}
	}
	for _, p := range a.stale {
		if !strings.Contains(report[strings.LastIndex(report, "\n## Calls\n"):], p.point) {
			t.Errorf("the report has no call about %q", p.point)
		}
	}
	if n := a.metric(t, `kubediag_faults{code="StaleSubPath"}`); n != 1 {
		t.Errorf("%v faults are left, want that of the other pod", n)
	}
}
