// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"encoding/json"
	"testing"

	"kubediag.org/kubediag/internal/processor"
)

// TestPartRemembers over a crash, after which the plan is read from the journal.
func TestPartRemembers(t *testing.T) {
	t.Parallel()
	type memory struct{ Device, UID string }
	want := memory{"rbd0", "b3d6"}
	var p, later Part
	if err := p.SaveState(want); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &later); err != nil {
		t.Fatal(err)
	}
	var got memory
	if err := later.LoadState(&got); err != nil || got != want {
		t.Errorf("recalled %+v, %v, want %+v", got, err, want)
	}
	for name, notes := range map[string]map[string]string{"none": nil, "not JSON": {StateNote: "x"}, "another's": {StateNote: `{"Device":1}`}} {
		if err := (&Part{Notes: notes}).LoadState(&got); !processor.IsStalled(err) {
			t.Errorf("%s: %v, want an error that is not worth another try", name, err)
		}
	}
	if err := p.SaveState(func() {}); err == nil {
		t.Error("what cannot be written down is remembered")
	}
}
