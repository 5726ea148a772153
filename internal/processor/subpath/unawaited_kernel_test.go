// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// TestWithoutWaitingNothingIsHealedThatSuffered: the mounts are repaired, and it is unknown whether app starts.
func TestWithoutWaitingNothingIsHealedThatSuffered(t *testing.T) {
	w := newRepairScene(t)
	w.fail()
	w.request.Values = map[string]string{ParamWaitSeconds: "0"}
	_, result := w.heal(t)
	healed := map[string]bool{}
	for _, f := range result.Findings {
		healed[f.Container] = f.Healed
		if said := slices.Contains(f.Evidence, processor.NotAwaitedNote); said == f.Healed {
			t.Errorf("container %q: healed %v, evidence %q", f.Container, f.Healed, f.Evidence)
		}
	}
	if diff := cmp.Diff(map[string]bool{"app": false, "sidecar": true}, healed); diff != "" || result.Values[KeyRecoverRunningAfter] != "" {
		t.Errorf("values %q, healed by container (-want +got):\n%s", result.Values, diff)
	}
}

// TestInOtherWords: no sentence of a plan or of an action decides anything.
func TestInOtherWords(t *testing.T) {
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		w := newRepairScene(t)
		w.renew()
		return w.healer, w.request
	})
}
