// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
)

// runServer is an API server whose Diagnoses end at once: with a plan, or repaired.
func runServer(t *testing.T, made *[]v1.Diagnosis) string {
	t.Helper()
	return serverOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods/web"):
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"shop","name":"web"}}`))
		case r.Method == http.MethodPost:
			d := v1.Diagnosis{}
			if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
				t.Error(err)
			}
			d.Name, d.UID = d.GenerateName+"1", "u"
			d.Status.Phase, d.Status.Outcome = v1.DiagnosisSucceeded, v1.OutcomeHealed
			if d.Spec.Mode == v1.ModePlan {
				d.Status.Outcome, d.Status.Plan = v1.OutcomePlanned, &v1.Plan{Hash: strings.Repeat("0a", 32), Actions: 1}
			}
			*made = append(*made, d)
			_ = json.NewEncoder(w).Encode(d)
		default:
			last := v1.DiagnosisList{Items: (*made)[len(*made)-1:]}
			last.APIVersion, last.Kind = v1.GroupVersion.String(), "DiagnosisList"
			_ = json.NewEncoder(w).Encode(last)
		}
	}))
}

// TestRunEvicts only with --evict: then both Diagnoses allow it, and the command that repairs the plan does, too.
func TestRunEvicts(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]map[string]string{"": nil, "--evict": {"param.recover.kubernetes.pod_evict.allowed": "true"}} {
		var made []v1.Diagnosis
		server := runServer(t, &made)
		for _, then := range []string{"--heal=never", "--plan-hash=" + strings.Repeat("0a", 32)} {
			out, _ := runAs(t, Name, strings.Fields("run pod/web -n shop --server="+server+" "+then+" "+flag)...)
			if then == "--heal=never" && strings.Contains(out, "run pod/web -n shop --evict --plan-hash=") != (flag != "") {
				t.Errorf("with %q:\n%s", flag, out)
			}
		}
		if len(made) != 2 {
			t.Fatalf("with %q: %d Diagnoses", flag, len(made))
		}
		for _, d := range made {
			if diff := cmp.Diff(want, d.Spec.Parameters); diff != "" {
				t.Errorf("with %q, parameters (-want +got):\n%s", flag, diff)
			}
		}
	}
}
