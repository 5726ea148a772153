// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

func TestReserved(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"param.": true, "param.x": true, "node": true, "container": true, "pod.name": true, "pod.namespace": true, "diagnosis.uid": true,
		"diagnosis.name": true, "diagnosis.namespace": true,
		"": false, "param": false, "params.x": false, "Param.x": false, "collector.param.x": false, "nodes": false, "pod.detail": false,
	} {
		if Reserved(key) != want {
			t.Errorf("%q: %v, want %v", key, !want, want)
		}
	}
}

func TestHealed(t *testing.T) {
	t.Parallel()
	findings := []fault.Finding{{Container: "app", Evidence: []string{"nlink 0"}}, {Container: "sidecar"}}
	open := func(f fault.Finding) bool { return f.Container == "app" }
	want := []fault.Finding{{Container: "app", Evidence: []string{"nlink 0", NotAwaitedNote}}, {Container: "sidecar", Healed: true}}
	if diff := cmp.Diff(want, MarkHealed(findings, open)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	for _, f := range MarkHealed(findings, nil) {
		if !f.Healed {
			t.Errorf("with none open: %+v", f)
		}
	}
	if findings[1].Healed || len(findings[0].Evidence) != 1 {
		t.Errorf("the plan's were changed: %+v", findings)
	}
}
