// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestOrigin: the manager says who asked, whatever the label said before.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		labels map[string]string
		mode   v1.DiagnosisMode
		set    string
		want   string
	}{
		"policy":              {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeApprove, "set", v1.OriginPolicy},
		"policy that plans":   {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModePlan, "set", v1.OriginPolicy},
		"policy that evicts":  {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeRecover, v1.EvictOperationSet, v1.OriginPolicy},
		"policy that repairs": {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeRecover, "set", v1.OriginPerson},
		"trigger":             {map[string]string{v1.LabelOrigin: v1.OriginTrigger, v1.LabelTrigger: "t"}, "", "set", v1.OriginTrigger},
		"sentinel":            {map[string]string{v1.LabelOrigin: v1.OriginSentinel}, "", "set", v1.OriginPerson},
		"nothing":             {nil, "", "set", v1.OriginPerson},
	} {
		d := diagnosisOn("node-1", nil)
		d.Labels, d.Spec.Mode, d.Spec.OperationSet = tc.labels, tc.mode, tc.set
		w := newDiagnosisWorld(t, d, newNode("node-1"))
		w.reconcileOnce(t)
		if got := w.diagnosis(t).Labels[v1.LabelOrigin]; got != tc.want {
			t.Errorf("%s: origin %q, want %q", name, got, tc.want)
		}
	}
}
