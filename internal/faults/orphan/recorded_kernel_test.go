// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
)

// TestEvidenceIsJudgedAgain writes down what was found, and reaches the same findings from it: of a directory that can
// be removed, and of one that has data in it.
func TestEvidenceIsJudgedAgain(t *testing.T) {
	for name, data := range map[string]bool{"whole": false, "with data": true} {
		t.Run(name, func(t *testing.T) {
			s := orphantest.New(t)
			s.Leave(goneUID)
			if data {
				s.File(goneUID, "volumes/kubernetes.io~empty-dir/cache/data", "x")
			}
			survey, err := s.Inspector.Survey(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(survey.Evidence())
			if err != nil {
				t.Fatal(err)
			}
			var e orphan.Evidence
			if err := json.Unmarshal(text, &e); err != nil {
				t.Fatal(err)
			}
			again := e.Judge()
			if len(survey.Findings()) != 1 {
				t.Fatalf("findings %+v, want one", survey.Findings())
			}
			if diff := cmp.Diff(survey.Findings(), again.Findings()); diff != "" {
				t.Errorf("findings (-node +evidence):\n%s", diff)
			}
			if diff := cmp.Diff(plannedPaths(survey.Pods[0]), plannedPaths(again.Pods[0])); diff != "" {
				t.Errorf("plan (-node +evidence):\n%s", diff)
			}
		})
	}
}
