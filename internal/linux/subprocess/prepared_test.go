// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"errors"
	"testing"
	"time"
)

// TestProgramThatDoesNoJobs starts nothing: its process would be the whole program.
func TestProgramThatDoesNoJobs(t *testing.T) {
	mainCalled.Store(false)
	defer mainCalled.Store(true)
	var r Runner
	if err := r.Run(t.Context(), Options{Job: "count", Deadline: time.Minute}); !errors.Is(err, errNotPrepared) {
		t.Errorf("error %v, want errNotPrepared", err)
	}
}
