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
		want   string
	}{
		"policy":              {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, v1.ModeApprove, v1.OriginPolicy},
		"policy that repairs": {map[string]string{v1.LabelOrigin: v1.OriginPolicy}, "", v1.OriginPerson},
		"trigger":             {map[string]string{v1.LabelOrigin: v1.OriginTrigger, v1.LabelTrigger: "t"}, "", v1.OriginTrigger},
		"sentinel":            {map[string]string{v1.LabelOrigin: v1.OriginSentinel}, "", v1.OriginPerson},
		"nothing":             {nil, "", v1.OriginPerson},
	} {
		d := diagnosisOn("node-1", nil)
		d.Labels, d.Spec.Mode = tc.labels, tc.mode
		w := newDiagnosisWorld(t, d, newNode("node-1"))
		w.reconcileOnce(t)
		if got := w.diagnosis(t).Labels[v1.LabelOrigin]; got != tc.want {
			t.Errorf("%s: origin %q, want %q", name, got, tc.want)
		}
	}
}
