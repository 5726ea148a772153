// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"encoding/json"
	"os"
	"testing"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
)

// health runs a script on an object as Argo CD does: in gopher-lua, with the object as the global obj.
func health(t *testing.T, script string, object any) (status, message string) {
	t.Helper()
	text, err := json.Marshal(object)
	must(t, err)
	var fields any
	must(t, json.Unmarshal(text, &fields))
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", luaValue(l, fields))
	must(t, l.DoString(script))
	answer, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %v, want a table", l.Get(-1))
	}
	return answer.RawGetString("status").String(), answer.RawGetString("message").String()
}

// luaValue is a value of JSON in Lua.
func luaValue(l *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		table := l.NewTable()
		for key, field := range value {
			table.RawSetString(key, luaValue(l, field))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, item := range value {
			table.Append(luaValue(l, item))
		}
		return table
	case string:
		return lua.LString(value)
	case float64:
		return lua.LNumber(value)
	case bool:
		return lua.LBool(value)
	}
	return lua.LNil
}

// TestHealthOfArgoCD holds that each kind has a script, and that it knows the states of its objects.
func TestHealthOfArgoCD(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../config/integrations/argocd.yaml")
	must(t, err)
	var settings corev1.ConfigMap
	must(t, yaml.UnmarshalStrict(text, &settings))
	diagnosis := func(phase v1.DiagnosisPhase, outcome v1.Outcome) v1.Diagnosis {
		return v1.Diagnosis{Status: v1.DiagnosisStatus{Phase: phase, Outcome: outcome, Summary: "as it is"}}
	}
	ready := func(status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: "Other", Status: "False"}, {Type: v1.ConditionReady, Status: status, Message: "as it is"}}
	}
	newer := metav1.ObjectMeta{Generation: 2}
	for name, c := range map[string]struct {
		kind          string
		object        any
		want, message string
	}{
		"diagnosis, new":       {"Diagnosis", v1.Diagnosis{}, "Progressing", ""},
		"diagnosis, running":   {"Diagnosis", diagnosis(v1.DiagnosisRunning, ""), "Progressing", "as it is"},
		"diagnosis, healed":    {"Diagnosis", diagnosis(v1.DiagnosisSucceeded, v1.OutcomeHealed), "Healthy", "as it is"},
		"diagnosis, no fault":  {"Diagnosis", diagnosis(v1.DiagnosisSucceeded, v1.OutcomeNoFault), "Healthy", "as it is"},
		"diagnosis, completed": {"Diagnosis", diagnosis(v1.DiagnosisSucceeded, v1.OutcomeCompleted), "Healthy", "as it is"},
		"diagnosis, planned":   {"Diagnosis", diagnosis(v1.DiagnosisSucceeded, v1.OutcomePlanned), "Healthy", "as it is"},
		"diagnosis, waiting":   {"Diagnosis", diagnosis(v1.DiagnosisRunning, v1.OutcomeAwaitingApproval), "Suspended", "as it is"},
		"diagnosis, fault":     {"Diagnosis", diagnosis(v1.DiagnosisSucceeded, v1.OutcomeFaultFound), "Degraded", "as it is"},
		"diagnosis, error":     {"Diagnosis", diagnosis(v1.DiagnosisFailed, v1.OutcomeError), "Degraded", "as it is"},
		"diagnosis, failed":    {"Diagnosis", diagnosis(v1.DiagnosisFailed, ""), "Degraded", "as it is"},
		"operation, new":       {"Operation", v1.Operation{}, "Progressing", ""},
		"operation, ready":     {"Operation", v1.Operation{Status: v1.OperationStatus{Conditions: ready("True")}}, "Healthy", "as it is"},
		"operation set, old":   {"OperationSet", v1.OperationSet{ObjectMeta: newer, Status: v1.OperationSetStatus{ObservedGeneration: 1, Conditions: ready("True")}}, "Progressing", ""},
		"operation set, bad":   {"OperationSet", v1.OperationSet{ObjectMeta: newer, Status: v1.OperationSetStatus{ObservedGeneration: 2, Conditions: ready("False")}}, "Degraded", "as it is"},
		"policy, ready":        {"RecoveryPolicy", v1.RecoveryPolicy{Status: v1.RecoveryPolicyStatus{Conditions: ready("True")}}, "Healthy", "as it is"},
		"policy, paused":       {"RecoveryPolicy", v1.RecoveryPolicy{Spec: v1.RecoveryPolicySpec{Paused: true}, Status: v1.RecoveryPolicyStatus{Conditions: ready("True")}}, "Suspended", "as it is"},
		"trigger, suspended":   {"Trigger", v1.Trigger{Spec: v1.TriggerSpec{Suspend: true}, Status: v1.TriggerStatus{Conditions: ready("False")}}, "Suspended", "as it is"},
		"trigger, unknown":     {"Trigger", v1.Trigger{Status: v1.TriggerStatus{Conditions: ready("Unknown")}}, "Progressing", ""},
	} {
		script, found := settings.Data["resource.customizations.health.diagnosis.kubediag.org_"+c.kind]
		if !found {
			t.Fatalf("%s has no script", c.kind)
		}
		if got, message := health(t, script, c.object); got != c.want || message != c.message {
			t.Errorf("%s: %q with the message %q, want %q with %q", name, got, message, c.want, c.message)
		}
	}
}
