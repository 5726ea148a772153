// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package integrations

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestStatusOfKstatus has kstatus itself judge our objects, as Flux and Helm do. Its program has a module of its own.
func TestStatusOfKstatus(t *testing.T) {
	t.Parallel()
	kstatus := filepath.Join(t.TempDir(), "kstatus")
	build := exec.Command("go", "build", "-o", kstatus, ".")
	build.Dir, build.Env = "kstatus", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	kind := func(name string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: name}
	}
	ready := func(status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: v1.ConditionReady, Status: status, Reason: "Because", Message: "why"}}
	}
	policy := func(status metav1.ConditionStatus) any {
		return &v1.RecoveryPolicy{TypeMeta: kind("RecoveryPolicy"), Status: v1.RecoveryPolicyStatus{Conditions: ready(status)}}
	}
	trigger := func(status metav1.ConditionStatus) any {
		return &v1.Trigger{TypeMeta: kind("Trigger"), Status: v1.TriggerStatus{Conditions: ready(status)}}
	}
	diagnosis := func(status metav1.ConditionStatus) any {
		return &v1.Diagnosis{TypeMeta: kind("Diagnosis"), Status: v1.DiagnosisStatus{
			Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Status: status, Reason: "Because", Message: "why"}},
		}}
	}
	deleted := &v1.RecoveryPolicy{TypeMeta: kind("RecoveryPolicy")}
	now := metav1.Now()
	deleted.DeletionTimestamp = &now
	var objects []any
	var want []string
	for _, c := range []struct {
		object any
		status string
	}{
		{policy(metav1.ConditionTrue), "Current"}, {policy(metav1.ConditionFalse), "InProgress"}, {policy(metav1.ConditionUnknown), "InProgress"},
		{trigger(metav1.ConditionTrue), "Current"}, {trigger(metav1.ConditionFalse), "InProgress"}, {deleted, "Terminating"},
		// It does not know the condition Complete.
		{diagnosis(metav1.ConditionTrue), "Current"}, {diagnosis(metav1.ConditionFalse), "Current"},
	} {
		objects, want = append(objects, c.object), append(want, c.status)
	}
	text, err := json.Marshal(objects)
	must(t, err)
	cmd := exec.Command(kstatus)
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	if diff := cmp.Diff(want, strings.Fields(string(out))); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
