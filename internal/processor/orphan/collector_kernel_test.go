// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/processor"
)

func collectOrphans(t *testing.T, s *orphantest.Scene) (processor.Result, orphan.Survey) {
	t.Helper()
	result, err := (&Collector{Inspector: s.Inspector}).Run(t.Context(), processor.Request{})
	if err != nil {
		t.Fatal(err)
	}
	var survey orphan.Survey
	if err := json.Unmarshal([]byte(result.Values[keyList]), &survey); err != nil {
		t.Fatal(err)
	}
	return result, survey
}

func TestCollects(t *testing.T) {
	s := orphantest.New(t)
	result, survey := collectOrphans(t, s)
	if !strings.Contains(result.NotApplicable, "each of the 1 pod directories") || survey.Directories != 1 || len(survey.Pods) != 0 {
		t.Errorf("with none: %q, %+v", result.NotApplicable, survey)
	}
	s.Leave(orphantest.Gone)
	result, survey = collectOrphans(t, s)
	if result.NotApplicable != "" || len(result.Findings) != 1 || result.Findings[0].Code != fault.OrphanedPodVolumes {
		t.Errorf("result = %+v", result)
	}
	if len(survey.Pods) != 1 || !survey.Pods[0].Orphaned || len(survey.Pods[0].Actions) == 0 || len(survey.Pods[0].Entries) == 0 {
		t.Errorf("survey = %+v", survey)
	}
	s.Server.Broken = errors.New("connection refused")
	result, survey = collectOrphans(t, s)
	if !strings.Contains(result.NotApplicable, "not proven: the API server could not be asked: connection refused") ||
		len(result.Findings) > 0 || len(survey.Pods) != 1 || survey.Pods[0].Orphaned {
		t.Errorf("without the API server: %q, %+v", result.NotApplicable, survey)
	}
}
