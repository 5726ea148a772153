// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// changesOfWaiting are the changes in the plan of a Diagnosis that waits.
var changesOfWaiting = []string{`boot "b"`, `Unmount mount "/m"`}

// waiting is a Diagnosis whose plan waits for its approval.
func waiting(hash string) *v1.Diagnosis {
	diagnosis := &v1.Diagnosis{}
	diagnosis.APIVersion, diagnosis.Kind = v1.GroupVersion.String(), "Diagnosis"
	diagnosis.Namespace, diagnosis.Name, diagnosis.UID = "shop", "web", "web-uid"
	diagnosis.Spec = v1.DiagnosisSpec{Mode: v1.ModeApprove, NodeName: "n1"}
	diagnosis.Status.Phase, diagnosis.Status.Outcome = v1.DiagnosisRunning, v1.OutcomeAwaitingApproval
	diagnosis.Status.Plan = &v1.Plan{Hash: hash, Changes: changesOfWaiting, Operation: "repair", Actions: 1, Lossless: true}
	diagnosis.Status.Approval = &v1.ApprovalStatus{PlanHash: hash}
	diagnosis.Status.Operations = []v1.OperationRun{{ID: 1, Operation: "repair", Actions: []v1.Action{{Kind: "Unmount", Target: "/m", Phase: v1.ActionPlanned}}}}
	return diagnosis
}

// TestApprove: nothing is created without an answer, and only the approval of the plan that waits.
func TestApprove(t *testing.T) {
	t.Parallel()
	hash, other := v1.PlanHash(changesOfWaiting), strings.Repeat("0b", 32)
	for name, tc := range map[string]struct {
		args    []string
		change  func(*v1.Diagnosis)
		want    error
		created bool
		says    string
	}{
		"its plan":       {args: []string{"--plan-hash=" + hash}, created: true, says: "Created RecoveryApproval shop/web-1 of plan " + hash[:12]},
		"for a minute":   {args: []string{"--plan-hash=" + hash, "--expires=1m"}, created: true, says: "unmount /m"},
		"its changes":    {args: []string{"--plan-hash=" + hash}, created: true, says: "exactly these lines:\n  boot \"b\"\n  Unmount mount \"/m\"\n"},
		"other changes":  {args: []string{"--plan-hash=" + hash}, change: func(d *v1.Diagnosis) { d.Status.Plan.Changes = changesOfWaiting[:1] }, want: verb.ErrRefused},
		"an old agent":   {change: func(d *v1.Diagnosis) { d.Status.Plan.Changes = nil }, want: verb.ErrRefused},
		"unseen":         {args: []string{"--plan-hash=" + hash}, change: func(d *v1.Diagnosis) { d.Status.Plan.Changes = nil }, created: true},
		"no terminal":    {want: verb.ErrFaults, says: "approve web -n shop --plan-hash=" + hash},
		"as another":     {args: []string{"--as=anna", "--as-group=shop"}, want: verb.ErrFaults, says: "--plan-hash=" + hash + " --as=anna --as-group=shop\n"},
		"another plan":   {args: []string{"--plan-hash=" + other}, want: verb.ErrRefused},
		"no plan hash":   {args: []string{"--plan-hash=abc"}, says: ""},
		"for ever":       {args: []string{"--plan-hash=" + hash, "--expires=25h"}},
		"another mode":   {args: []string{"--plan-hash=" + hash}, change: func(d *v1.Diagnosis) { d.Spec.Mode = v1.ModePlan }, want: verb.ErrRefused},
		"approved":       {args: []string{"--plan-hash=" + hash}, change: func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisSucceeded }, want: verb.ErrRefused},
		"no plan so far": {change: func(d *v1.Diagnosis) { d.Status.Approval = nil }, want: verb.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diagnosis := waiting(hash)
			if tc.change != nil {
				tc.change(diagnosis)
			}
			var got *v1.RecoveryApproval
			server := serverOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.Method != http.MethodPost {
					_ = json.NewEncoder(w).Encode(diagnosis)
					return
				}
				if strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
					_, _ = w.Write([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview","status":{"userInfo":{"username":"anna"}}}`))
					return
				}
				got = &v1.RecoveryApproval{}
				if err := json.NewDecoder(r.Body).Decode(got); err != nil || !strings.HasSuffix(r.URL.Path, "/namespaces/shop/recoveryapprovals") {
					t.Errorf("%s: %v", r.URL.Path, err)
				}
				got.Name = got.GenerateName + "1"
				_ = json.NewEncoder(w).Encode(got)
			}))
			var out strings.Builder
			cmd := NewCommand(Name, append([]string{"approve", "web", "-n", "shop", "--server=" + server}, tc.args...))
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := cmd.ExecuteContext(t.Context())
			if (err == nil) != tc.created || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(out.String(), tc.says) {
				t.Errorf("error %v, output:\n%s", err, &out)
			}
			if (got != nil) != tc.created || got != nil && (got.Spec.PlanHash != hash || got.Spec.Diagnosis.UID != diagnosis.UID || got.Spec.Approver != "anna") {
				t.Errorf("created %+v", got)
			}
		})
	}
}
