// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package apitest_test

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/config/samples"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// servers are the two API servers by version.
func servers(t *testing.T) map[string]*apitest.Env {
	t.Helper()
	return map[string]*apitest.Env{apitest.Version(): apitest.Start(t), "1.18": apitest.StartOld(t)}
}

// A manifest that was written for KubeDiag applies as it stands and keeps every field.
func TestOriginApplies(t *testing.T) {
	origin, err := os.ReadFile("testdata/origin.yaml")
	must(t, err)
	for version, env := range servers(t) {
		for name, manifests := range map[string]string{
			"walkthrough": operations.SubPathRemount + "\n---\n" + samples.Diagnosis, "origin": string(origin),
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				for _, object := range apitest.Objects(t, manifests) {
					want := object.DeepCopy()
					env.MustCreate(t, object)
					spec, _, _ := unstructured.NestedMap(want.Object, "spec")
					if object.GetKind() == "Operation" {
						setDefault(spec, int64(30), "processor", "timeoutSeconds")
					}
					if diff := cmp.Diff(spec, object.Object["spec"]); diff != "" {
						t.Errorf("%s %s (-want +got):\n%s", object.GetKind(), object.GetName(), diff)
					}
					if err := env.ReadTyped(t.Context(), object); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func setDefault(object map[string]any, value any, fields ...string) {
	if _, ok, _ := unstructured.NestedFieldNoCopy(object, fields...); !ok {
		_ = unstructured.SetNestedField(object, value, fields...)
	}
}

// refused are objects that no server accepts, and those that only one with CEL rules refuses. A 1.18 server accepts the
// latter; the controllers refuse them there. It names the field, but no position in a list, and the bound instead of the
// value.
var refused = map[string]struct {
	kind, spec string
	want       []string
	cel        bool
}{
	"two forms":         {"Operation", "{processor: {path: /processor/x, httpServer: {path: /y}}}", []string{"spec.processor", "exactly one form", "leave out the fields of the others"}, true},
	"no form":           {"Operation", "{processor: {timeoutSeconds: 5}}", []string{"spec.processor", "exactly one form"}, true},
	"two addresses":     {"Operation", "{processor: {externalIP: 10.0.0.1, externalAddress: a.b}}", []string{"spec.processor", "externalIP and externalAddress"}, true},
	"port 0":            {"Operation", "{processor: {externalIP: 10.0.0.1, externalPort: 0}}", []string{"spec.processor.externalPort", "0"}, false},
	"port 70000":        {"Operation", "{processor: {httpServer: {address: a.b, port: 70000}}}", []string{"spec.processor.httpServer.port", "70000"}, false},
	"scheme ftp":        {"Operation", "{processor: {path: /processor/x, scheme: ftp}}", []string{"spec.processor.scheme", `"ftp"`}, false},
	"timeout 0":         {"Operation", "{processor: {path: /processor/x, timeoutSeconds: 0}}", []string{"spec.processor.timeoutSeconds", "0"}, false},
	"timeout too long":  {"Operation", "{processor: {path: /processor/x, timeoutSeconds: 86401}}", []string{"spec.processor.timeoutSeconds", "86401"}, false},
	"empty script":      {"Operation", "{processor: {scriptRunner: {script: ''}}}", []string{"spec.processor.scriptRunner.script"}, false},
	"no processor":      {"Operation", "{}", []string{"spec.processor"}, false},
	"empty list":        {"OperationSet", "{adjacencyList: []}", []string{"spec.adjacencyList"}, false},
	"negative id":       {"OperationSet", "{adjacencyList: [{id: 0, to: [1]}, {id: -1, operation: a}]}", []string{"spec.adjacencyList[1].id", "-1"}, false},
	"negative edge":     {"OperationSet", "{adjacencyList: [{id: 0, to: [-7]}, {id: 1, operation: a}]}", []string{"spec.adjacencyList[0].to[0]", "-7"}, false},
	"id of 1000":        {"OperationSet", "{adjacencyList: [{id: 0, to: [1]}, {id: 1000, operation: a}]}", []string{"spec.adjacencyList[1].id", "1000"}, false},
	"10000 nodes":       {"OperationSet", "{adjacencyList: [{}" + strings.Repeat(", {}", 9999) + "]}", []string{"spec.adjacencyList", "10000"}, false},
	"nowhere":           {"Diagnosis", "{operationSet: s}", []string{"spec", "nodeName or podReference must be set"}, true},
	"empty set":         {"Diagnosis", "{operationSet: '', nodeName: n1}", []string{"spec.operationSet"}, false},
	"mode":              {"Diagnosis", "{nodeName: n1, mode: Try}", []string{"spec.mode", `"Try"`}, false},
	"artifacts":         {"Diagnosis", "{nodeName: n1, artifacts: Mail}", []string{"spec.artifacts"}, false},
	"plan hash":         {"Diagnosis", "{nodeName: n1, planHash: abc}", []string{"spec.planHash"}, false},
	"plan of a plan":    {"Diagnosis", "{nodeName: n1, mode: Plan, planHash: " + strings.Repeat("0a", 32) + "}", []string{"spec", "planHash cannot be set with mode Plan"}, true},
	"wait of no end":    {"Diagnosis", "{nodeName: n1, mode: Approve, approvalTimeoutSeconds: 604801}", []string{"spec.approvalTimeoutSeconds", "604801"}, false},
	"wait for nothing":  {"Diagnosis", "{nodeName: n1, approvalTimeoutSeconds: 5}", []string{"spec", "approvalTimeoutSeconds takes mode Approve"}, true},
	"record by trigger": {"Trigger", "{operationSet: s, mode: Record, sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec", "mode must not be Record"}, true},
	"approval of none":  {"RecoveryApproval", "{planHash: " + strings.Repeat("0a", 32) + "}", []string{"spec.diagnosis"}, false},
	"approval of all":   {"RecoveryApproval", "{diagnosis: {name: d}, planHash: any}", []string{"spec.planHash"}, false},
	"approval for ever": {"RecoveryApproval", "{diagnosis: {name: d}, planHash: " + strings.Repeat("0a", 32) + ", expirationSeconds: 86401}", []string{"spec.expirationSeconds", "86401"}, false},
	"pod without name":  {"Diagnosis", "{operationSet: s, podReference: {namespace: a}}", []string{"spec.podReference.name"}, false},
	"deadline 0":        {"Diagnosis", "{operationSet: s, nodeName: n1, activeDeadlineSeconds: 0}", []string{"spec.activeDeadlineSeconds", "0"}, false},
	"no source":         {"Trigger", "{operationSet: s, sourceTemplate: {}}", []string{"spec.sourceTemplate", "exactly one of"}, true},
	"two sources":       {"Trigger", "{operationSet: s, nodeName: n1, sourceTemplate: {cronTemplate: {schedule: '@daily'}, mountFaultTemplate: {}}}", []string{"spec.sourceTemplate", "exactly one of"}, true},
	"cron without node": {"Trigger", "{operationSet: s, sourceTemplate: {cronTemplate: {schedule: '@daily'}}}", []string{"spec", "nodeName or nodeSelector must be set with cronTemplate"}, true},
	"two places":        {"Trigger", "{operationSet: s, nodeName: n1, nodeSelector: {}, sourceTemplate: {cronTemplate: {schedule: '@daily'}}}", []string{"spec", "nodeName and nodeSelector must not both be set"}, true},
	"parameter twice":   {"Trigger", "{operationSet: s, sourceTemplate: {prometheusAlertTemplate: {regexp: {}, parametersFrom: [{name: a, label: b, annotation: c}]}}}", []string{"parametersFrom[0]", "exactly one of label and annotation"}, true},
	"policy":            {"Trigger", "{operationSet: s, nodeName: n1, sourceTemplate: {cronTemplate: {schedule: '@daily', concurrencyPolicy: Never}}}", []string{"spec.sourceTemplate.cronTemplate.concurrencyPolicy", `"Never"`}, false},
	"recovery mode":     {"RecoveryPolicy", "{mode: Sometimes}", []string{"spec.mode", `"Sometimes"`}, false},
	"idle breaker":      {"RecoveryPolicy", "{mode: 'Off', breaker: {nodePoolLabel: zone}}", []string{"spec.breaker", "failedRepairs or maximumNodesPercent"}, true},
	"no budget":         {"RecoveryPolicy", "{mode: 'Off', budgets: {node: {atOnce: 0, perHour: 1}}}", []string{"spec.budgets.node.atOnce", "0"}, false},
	"share of nothing":  {"RecoveryPolicy", "{mode: 'Off', budgets: {namespace: {atOnce: 1, perHour: 1}}}", []string{"spec.budgets", "namespace needs node"}, true},
	"staleness 0":       {"RecoveryPolicy", "{mode: 'Off', maximumStalenessSeconds: 0}", []string{"spec.maximumStalenessSeconds", "0"}, false},
	"evicts at once":    {"RecoveryPolicy", "{mode: 'Off', escalation: {evict: {afterSeconds: 59}}}", []string{"spec.escalation.evict.afterSeconds", "59"}, false},
	"cordons too late":  {"RecoveryPolicy", "{mode: 'Off', escalation: {cordon: {afterSeconds: 604801}}}", []string{"spec.escalation.cordon.afterSeconds", "604801"}, false},
	"cordons for none":  {"RecoveryPolicy", "{mode: 'Off', escalation: {cordon: {afterSeconds: 60, minimumPods: 0}}}", []string{"spec.escalation.cordon.minimumPods", "0"}, false},
	"cordons all":       {"RecoveryPolicy", "{mode: 'Off', escalation: {cordon: {afterSeconds: 60, maximumNodes: 101}}}", []string{"spec.escalation.cordon.maximumNodes", "101"}, false},
	"window of no time": {"RecoveryPolicy", "{mode: 'Off', windows: [{schedule: '@daily', durationSeconds: 0}]}", []string{"spec.windows[0].durationSeconds", "0"}, false},
	"pace 0":            {"Trigger", "{operationSet: s, diagnosesPerMinute: 0, sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec.diagnosesPerMinute", "0"}, false},
}

func TestRefused(t *testing.T) {
	for version, env := range servers(t) {
		for name, tc := range refused {
			t.Run(version+" "+name, func(t *testing.T) {
				object := apitest.Objects(t, "{apiVersion: diagnosis.kubediag.org/v1, kind: "+tc.kind+
					", metadata: {name: refused}, spec: "+tc.spec+"}")[0]
				if tc.kind == "Diagnosis" || tc.kind == "RecoveryApproval" {
					object.SetNamespace("default")
				}
				err := env.Create(t, object)
				if tc.cel && !env.Rules {
					if err != nil {
						t.Errorf("the server knows no CEL rules: %v", err)
					}
					return
				}
				if !apierrors.IsInvalid(err) {
					t.Fatalf("error = %v, want Invalid", err)
				}
				want := tc.want
				if version == "1.18" {
					want = []string{position.ReplaceAllString(want[0], "")}
				}
				for _, part := range want {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("error %q does not contain %q", err, part)
					}
				}
			})
		}
	}
}

var position = regexp.MustCompile(`\[\d+\]`)

// The spec of a Diagnosis does not change once it is there, but for the node that is filled in.
func TestDiagnosisSpecIsFixed(t *testing.T) {
	env := apitest.Start(t)
	env.NeedRules(t)
	deadline, longer := int32(60), int32(90)
	for name, tc := range map[string]struct {
		change func(*v1.DiagnosisSpec)
		want   string
	}{
		"set":            {func(s *v1.DiagnosisSpec) { s.OperationSet = "other" }, "operationSet cannot be changed"},
		"node":           {func(s *v1.DiagnosisSpec) { s.NodeName = "other" }, ""},
		"pod":            {func(s *v1.DiagnosisSpec) { s.PodReference.Name = "other" }, "podReference cannot be changed"},
		"container":      {func(s *v1.DiagnosisSpec) { s.PodReference.Container = "other" }, "podReference cannot be changed"},
		"no pod":         {func(s *v1.DiagnosisSpec) { s.NodeName, s.PodReference = "n", nil }, "podReference cannot be changed"},
		"parameter":      {func(s *v1.DiagnosisSpec) { s.Parameters["a"] = "other" }, "parameters cannot be changed"},
		"more of them":   {func(s *v1.DiagnosisSpec) { s.Parameters["b"] = "" }, "parameters cannot be changed"},
		"none":           {func(s *v1.DiagnosisSpec) { s.Parameters = nil }, "parameters cannot be changed"},
		"deadline":       {func(s *v1.DiagnosisSpec) { s.ActiveDeadlineSeconds = &longer }, "activeDeadlineSeconds cannot be changed"},
		"mode":           {func(s *v1.DiagnosisSpec) { s.Mode = v1.ModePlan }, "mode cannot be changed"},
		"artifacts":      {func(s *v1.DiagnosisSpec) { s.Artifacts = v1.ArtifactsInStatus }, "artifacts cannot be changed"},
		"wait":           {func(s *v1.DiagnosisSpec) { s.ApprovalTimeoutSeconds = &longer }, "approvalTimeoutSeconds cannot be changed"},
		"plan":           {func(s *v1.DiagnosisSpec) { s.PlanHash = strings.Repeat("0a", 32) }, "planHash cannot be changed"},
		"no deadline":    {func(s *v1.DiagnosisSpec) { s.ActiveDeadlineSeconds = nil }, "activeDeadlineSeconds cannot be changed"},
		"nothing at all": {func(*v1.DiagnosisSpec) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := &v1.Diagnosis{}
			d.Namespace, d.GenerateName = "default", "fixed-"
			d.Spec = v1.DiagnosisSpec{
				OperationSet: "s", PodReference: &v1.PodReference{Namespace: "a", Name: "b"},
				Parameters: map[string]string{"a": "b"}, ActiveDeadlineSeconds: &deadline,
			}
			env.MustCreate(t, d)
			tc.change(&d.Spec)
			err := env.Client.Update(t.Context(), d)
			if tc.want == "" && err != nil || tc.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
			if name == "node" {
				d.Spec.NodeName = "third"
				if err := env.Client.Update(t.Context(), d); !apierrors.IsInvalid(err) {
					t.Errorf("the node is changed after it was set: %v", err)
				}
			}
		})
	}
}

// A Diagnosis that names no set runs the set auto.
func TestDefaultSet(t *testing.T) {
	for version, env := range servers(t) {
		t.Run(version, func(t *testing.T) {
			d := &v1.Diagnosis{}
			d.Namespace, d.GenerateName, d.Spec.NodeName = "default", "defaults-", "n1"
			env.MustCreate(t, d)
			if d.Spec.OperationSet != v1.DefaultOperationSet || d.Spec.Mode != "" || d.Spec.PlanHash != "" {
				t.Errorf("spec = %+v", d.Spec)
			}
		})
	}
}

// A Diagnosis that an older release stored without a start can still be changed.
func TestNullStartTime(t *testing.T) {
	for version, env := range servers(t) {
		t.Run(version, func(t *testing.T) {
			d := &v1.Diagnosis{}
			d.Namespace, d.GenerateName = "default", "null-"
			d.Spec = v1.DiagnosisSpec{OperationSet: "s", NodeName: "n1"}
			env.MustCreate(t, d)
			null := client.RawPatch("application/json-patch+json", []byte(`[{"op": "add", "path": "/status", "value": {"phase": "Pending", "startTime": null}}]`))
			if err := env.Client.Status().Patch(t.Context(), d, null); err != nil {
				t.Fatalf("storing null: %v", err)
			}
			d.Labels = map[string]string{v1.LabelNode: "n"}
			if err := env.Client.Update(t.Context(), d); err != nil {
				t.Errorf("changing it: %v", err)
			}
		})
	}
}

// columns asks for a list of one object as kubectl shows it, and gives its cells by their names, and the names that are not only wide.
func columns(t *testing.T, env *apitest.Env, path string) (cells map[string]any, narrow []string) {
	t.Helper()
	client, err := rest.HTTPClientFor(env.Config)
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, env.Config.Host+"/apis/"+v1.Group+"/v1/"+path, nil)
	must(t, err)
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := client.Do(r)
	must(t, err)
	defer answer.Body.Close()
	var got metav1.Table
	must(t, json.NewDecoder(answer.Body).Decode(&got))
	cells = map[string]any{}
	for i, column := range got.ColumnDefinitions {
		cells[column.Name] = got.Rows[0].Cells[i]
		if column.Priority == 0 {
			narrow = append(narrow, column.Name)
		}
	}
	return cells, narrow
}

// The columns show fault and outcome at a glance.
func TestColumns(t *testing.T) {
	for version, env := range servers(t) {
		t.Run(version, func(t *testing.T) {
			d := &v1.Diagnosis{}
			d.Namespace, d.Name, d.Labels = env.Namespace(t), "d", map[string]string{v1.LabelOrigin: v1.OriginPerson}
			d.Spec = v1.DiagnosisSpec{OperationSet: "s", NodeName: "n1", PodReference: &v1.PodReference{Namespace: "a", Name: "b"}}
			env.MustCreate(t, d)
			before := d.DeepCopy()
			d.Status = v1.DiagnosisStatus{
				Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomeHealed, Target: "pod a/b", Summary: "Repaired it.",
				Faults: []v1.Fault{{Code: "StaleSubPath", State: v1.FaultHealed}},
			}
			must(t, env.Client.Status().Patch(t.Context(), d, client.MergeFrom(before)))
			cells, narrow := columns(t, env, "namespaces/"+d.Namespace+"/diagnoses")
			delete(cells, "Age")
			want := map[string]any{
				"Name": "d", "Target": "pod a/b", "Fault": "StaleSubPath", "Outcome": "Healed", "OperationSet": "s", "Node": "n1",
				"Mode": cells["Mode"], "Container": cells["Container"], "Phase": "Succeeded", "Summary": "Repaired it.",
				"Origin": "person",
			}
			if diff := cmp.Diff(want, cells); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"Name", "Target", "Fault", "Outcome", "Age"}, narrow); diff != "" {
				t.Errorf("columns that are not wide (-want +got):\n%s", diff)
			}
		})
	}
}

var must = kerneltest.Must
