// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/program"
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

// maxBoundaries is more than a walkthrough has.
const maxBoundaries = 100

// TestAgentKilledAtEveryStepEndsTheSame runs the walkthrough with an agent that kills itself with SIGKILL before, and
// another time after, it writes its nth record, for every n, and starts it again. Below the stale mount there is a
// healthy one, which a second unmount would take.
func TestAgentKilledAtEveryStepEndsTheSame(t *testing.T) {
	s := fakenode.New(t)
	s.Build(t, "manager", "")
	s.Build(t, "agent", "crash")
	s.Launch(t, "manager")
	healthy := s.Bind(t)
	want := play(t, s, 0, healthy)
	for n := 1; n < maxBoundaries; n++ {
		got := play(t, s, n, healthy)
		if got == nil { // it has fewer records than n
			t.Logf("the same end after a SIGKILL at each of %d boundaries", n-1)
			if n < 12 {
				t.Errorf("only %d boundaries were found", n-1)
			}
			return
		}
		if diff := cmp.Diff(want, got, same...); diff != "" {
			t.Errorf("killed at boundary %d (-undisturbed +killed):\n%s", n, diff)
		}
	}
	t.Fatalf("there are more than %d boundaries", maxBoundaries)
}

// same leaves out of the comparison what must differ: times, names of this very run, and how often was tried.
var same = cmp.Options{
	cmpopts.IgnoreFields(v1.DiagnosisStatus{}, "StartTime", "CompletionTime"),
	cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime"),
	cmp.Transformer("keys", func(results map[string]string) map[string]bool {
		keys := map[string]bool{}
		for key, value := range results {
			keys[key] = value != ""
		}
		return keys
	}),
	cmpopts.IgnoreFields(v1.OperationRun{}, "StartTime", "CompletionTime", "Attempts"),
	// Inode numbers; an unmount that was not written down is found done, and its call is not known.
	cmpopts.IgnoreFields(v1.Action{}, "Message", "Safety", "Calls"),
	cmpopts.IgnoreFields(v1.Mount{}, "ID", "MountInfoID", "Root"),
	cmpopts.IgnoreFields(v1.Plan{}, "Hash", "Changes"), // they name the mount by its numbers
	cmpopts.IgnoreFields(v1.Fault{}, "Evidence"),
	cmpopts.EquateEmpty(),
}

// play breaks the subPath and runs a Diagnosis with an agent that is killed at boundary n and then started again; n is 0
// for one that is left alone. It gives nil if there is no such boundary.
func play(t *testing.T, s *fakenode.Node, n int, healthy mount.State) *v1.DiagnosisStatus {
	t.Helper()
	stale := s.Break(t, n+1)
	marker := filepath.Join(t.TempDir(), "exit")
	script := fmt.Sprintf(`KUBEDIAG_CRASH_AT=%d "$@"; echo $? >"$0"; exec "$@"`, n)
	agent := s.Launch(t, "agent", "/bin/sh", "-c", script, marker)
	d := s.Run(t, fmt.Sprint("crash-", n), func() {})
	program.End(agent)
	code, err := os.ReadFile(marker)
	crashed := err == nil
	if crashed && string(code) != "137\n" {
		t.Fatalf("boundary %d: the agent ended with exit status %s, not by SIGKILL", n, code)
	}
	if d.Status.Phase != v1.DiagnosisSucceeded {
		t.Fatalf("boundary %d: the Diagnosis ended with %+v", n, d.Status.Conditions)
	}
	state, err := mount.Inspect(s.Point())
	if err != nil || !state.Same(healthy.ID) {
		t.Fatalf("boundary %d: the stale mount %v was repaired and left %v, %v; want the healthy %v", n, stale.ID, state.ID, err, healthy.ID)
	}
	if n > 0 && !crashed {
		return nil
	}
	return &d.Status
}
