// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// refusal is a spec and what must be in the message that refuses it. No text: the spec is valid.
type refusal struct {
	spec string
	want []string
}

func (tc refusal) check(t *testing.T, spec any, validate func() field.ErrorList) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(tc.spec), spec); err != nil {
		t.Fatalf("reading %s: %v", tc.spec, err)
	}
	text := Message(validate())
	if len(tc.want) == 0 && text != "" {
		t.Errorf("refused: %s", text)
	}
	if len(tc.want) > 0 && text == "" {
		t.Error("accepted")
	}
	for _, part := range tc.want {
		if !strings.Contains(text, part) {
			t.Errorf("message %q does not contain %q", text, part)
		}
	}
}

func TestDiagnosisSpecValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]refusal{
		"node":               {"{operationSet: s, nodeName: n-1.example.com}", nil},
		"pod":                {"{operationSet: s, podReference: {namespace: a, name: b.c, container: d}}", nil},
		"both":               {"{operationSet: s, nodeName: n, podReference: {namespace: a, name: b}, parameters: {a.b: c}, activeDeadlineSeconds: 86400}", nil},
		"neither":            {"{operationSet: s}", []string{"spec.nodeName", "podReference"}},
		"no set":             {"{nodeName: n}", nil},
		"plan":               {"{nodeName: n, mode: Plan}", nil},
		"one plan":           {"{nodeName: n, mode: Recover, planHash: " + strings.Repeat("0a", 32) + "}", nil},
		"mode":               {"{nodeName: n, mode: plan}", []string{"spec.mode", `"plan"`, "Recover", "Plan"}},
		"copies":             {"{nodeName: n, artifacts: Status}", nil},
		"place of artifacts": {"{nodeName: n, artifacts: Mail}", []string{"spec.artifacts", `"Mail"`}},
		"plan hash":          {"{nodeName: n, planHash: 0AF}", []string{"spec.planHash", `"0AF"`}},
		"plan of a plan":     {"{nodeName: n, mode: Plan, planHash: " + strings.Repeat("0a", 32) + "}", []string{"spec.planHash", "mode Plan"}},
		"to approve":         {"{nodeName: n, mode: Approve, approvalTimeoutSeconds: 604800, planHash: " + strings.Repeat("0a", 32) + "}", nil},
		"wait for nothing":   {"{nodeName: n, approvalTimeoutSeconds: 5}", []string{"spec.approvalTimeoutSeconds", "takes mode Approve"}},
		"wait of no end":     {"{nodeName: n, mode: Approve, approvalTimeoutSeconds: 604801}", []string{"spec.approvalTimeoutSeconds", "604801", "604800"}},
		"record":             {"{nodeName: n, mode: Record}", nil},
		"set is no name":     {"{operationSet: A/b, nodeName: n}", []string{"spec.operationSet", `"A/b"`}},
		"node is no name":    {"{operationSet: s, nodeName: ../x}", []string{"spec.nodeName", `"../x"`}},
		"pod without name":   {"{operationSet: s, podReference: {namespace: a}}", []string{"spec.podReference.name"}},
		"pod namespace":      {"{operationSet: s, podReference: {namespace: a.b, name: c}}", []string{"spec.podReference.namespace", `"a.b"`}},
		"pod container":      {"{operationSet: s, podReference: {namespace: a, name: c, container: X}}", []string{"spec.podReference.container", `"X"`}},
		"deadline 0":         {"{operationSet: s, nodeName: n, activeDeadlineSeconds: 0}", []string{"spec.activeDeadlineSeconds", " 0:"}},
		"deadline too long":  {"{operationSet: s, nodeName: n, activeDeadlineSeconds: 86401}", []string{"spec.activeDeadlineSeconds", "86401"}},
		"everything at once": {"{operationSet: _, nodeName: X, podReference: {namespace: '', name: ''}}", []string{"operationSet", "nodeName", "namespace", "name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s DiagnosisSpec
			tc.check(t, &s, func() field.ErrorList { return s.Validate() })
		})
	}
}

func TestParametersAreBounded(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range MaxParameters + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, tc := range map[string]struct {
		parameters map[string]string
		want       string
	}{
		"too many":          {many, "Too many: 65"},
		"too long":          {map[string]string{"a.b": strings.Repeat("é", MaxParameterCharacters-2)}, "spec.parameters: Invalid value: \"65537 characters\": must not have more than 65536 characters in all"},
		"too long together": {map[string]string{"a": strings.Repeat("x", 40000), "b": strings.Repeat("x", 40000)}, "80002 characters"},
		"just allowed":      {map[string]string{"a.b": strings.Repeat("é", MaxParameterCharacters-3)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := DiagnosisSpec{OperationSet: "s", NodeName: "n", Parameters: tc.parameters}
			if text := Message(s.Validate()); (text == "") != (tc.want == "") || !strings.Contains(text, tc.want) {
				t.Errorf("message = %q, want %q in it", text, tc.want)
			}
		})
	}
}

func TestTriggerSpecValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]refusal{
		"alert":       {"{operationSet: s, sourceTemplate: {prometheusAlertTemplate: {regexp: {alertName: '^Kube', labels: {a: b}}, nodeNameReferenceLabel: node}}}", nil},
		"event":       {"{operationSet: s, sourceTemplate: {kubernetesEventTemplate: {regexp: {reason: FailedMount, source: {component: kubelet}}}}}", nil},
		"common":      {"{operationSet: s, nodeName: n, sourceTemplate: {commonEventTemplate: {regexp: {class: 'High CPU'}}}}", nil},
		"cron":        {"{operationSet: s, nodeName: n, sourceTemplate: {cronTemplate: {schedule: '* * * * *'}}}", nil},
		"to approve":  {"{operationSet: s, mode: Approve, sourceTemplate: {mountFaultTemplate: {}}}", nil},
		"record":      {"{operationSet: s, mode: Record, sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec.mode", `"Record"`, "Approve"}},
		"mount fault": {"{operationSet: s, sourceTemplate: {mountFaultTemplate: {codes: [StaleSubPath]}}}", nil},
		"mount fault selectors": {
			"{operationSet: s, sourceTemplate: {mountFaultTemplate: {namespaceSelector: {matchLabels: {a: 'b c'}}, podSelector: {matchExpressions: [{key: a, operator: Near}]}, nodeSelector: {matchLabels: {'x y': b}}, lastingSeconds: 2592001}}}",
			[]string{"mountFaultTemplate.namespaceSelector", "mountFaultTemplate.podSelector", "mountFaultTemplate.nodeSelector", "mountFaultTemplate.lastingSeconds"},
		},
		"none": {"{operationSet: s, sourceTemplate: {}}", []string{"spec.sourceTemplate", `""`, "exactly one"}},
		"two": {
			"{operationSet: s, nodeName: n, sourceTemplate: {cronTemplate: {schedule: '@daily'}, mountFaultTemplate: {}}}",
			[]string{"spec.sourceTemplate", `"cronTemplate,mountFaultTemplate"`},
		},
		"no set":            {"{sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec.operationSet"}},
		"cron of all nodes": {"{operationSet: s, nodeSelector: {}, sourceTemplate: {cronTemplate: {schedule: '* * * * *'}}}", nil},
		"two places":        {"{operationSet: s, nodeName: n1, nodeSelector: {}, sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec.nodeName", `"n1"`, "nodeSelector"}},
		"selector":          {"{operationSet: s, nodeSelector: {matchLabels: {a: 'b c'}}, sourceTemplate: {mountFaultTemplate: {}}}", []string{"spec.nodeSelector", "b c"}},
		"numbers": {
			"{operationSet: s, repeatIntervalSeconds: 0, diagnosesPerMinute: 601, successfulHistoryLimit: -1, failedHistoryLimit: 101, sourceTemplate: {mountFaultTemplate: {}}}",
			[]string{"spec.repeatIntervalSeconds", "spec.diagnosesPerMinute", "spec.successfulHistoryLimit", "spec.failedHistoryLimit"},
		},
		"parameters of alerts": {"{operationSet: s, sourceTemplate: {prometheusAlertTemplate: {regexp: {}, parameterInjectionLabels: [a], parametersFrom: [{name: b, label: a}, {name: c, annotation: a}]}}}", nil},
		"parameter twice": {
			"{operationSet: s, parameters: {a: x}, sourceTemplate: {prometheusAlertTemplate: {regexp: {}, parameterInjectionLabels: [a, b], parametersFrom: [{name: b, label: x}, {name: c}]}}}",
			[]string{"parameterInjectionLabels[0]", "parametersFrom[0].name", "parametersFrom[1]", "exactly one of label and annotation"},
		},
		"long expression":   {"{operationSet: s, sourceTemplate: {kubernetesEventTemplate: {regexp: {reason: '" + strings.Repeat("x", 5000) + "'}}}}", []string{"kubernetesEventTemplate.regexp.reason"}},
		"cron without node": {"{operationSet: s, sourceTemplate: {cronTemplate: {schedule: '@daily'}}}", []string{"spec.nodeName", "cronTemplate"}},
		"alert label expression": {
			"{operationSet: s, sourceTemplate: {prometheusAlertTemplate: {regexp: {labels: {pod: 'a('}}}}}",
			[]string{"spec.sourceTemplate.prometheusAlertTemplate.regexp.labels[pod]", `"a("`, "missing closing"},
		},
		"event source expression": {
			"{operationSet: s, sourceTemplate: {kubernetesEventTemplate: {regexp: {source: {host: '(?<!x)'}}}}}",
			[]string{"kubernetesEventTemplate.regexp.source.host", "(?<!x)"},
		},
		"common event expression": {
			"{operationSet: s, sourceTemplate: {commonEventTemplate: {regexp: {severity: '[z-a]'}}}}",
			[]string{"commonEventTemplate.regexp.severity", "[z-a]"},
		},
		"expression that explodes": {
			"{operationSet: s, sourceTemplate: {commonEventTemplate: {regexp: {class: '((a{1000}){1000}){1000}'}}}}",
			[]string{"commonEventTemplate.regexp.class"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s TriggerSpec
			tc.check(t, &s, func() field.ErrorList { return s.Validate() })
		})
	}
}

func TestOperationSpecCall(t *testing.T) {
	t.Parallel()
	const processor = "processor: {path: /processor/x}"
	for name, tc := range map[string]refusal{
		"relative directory":    {"{" + processor + ", storage: {hostPath: {path: a/b}}}", nil},
		"absolute directory":    {"{" + processor + ", storage: {hostPath: {path: /var/lib/kubediag/x}}, dependences: [a]}", nil},
		"no storage after all":  {"{" + processor + ", storage: {}}", nil},
		"upwards":               {"{" + processor + ", storage: {hostPath: {path: a/../../etc}}}", []string{"spec.storage.hostPath.path", `"a/../../etc"`}},
		"root":                  {"{" + processor + ", storage: {hostPath: {path: //}}}", []string{"spec.storage.hostPath.path", `"//"`}},
		"empty":                 {"{" + processor + ", storage: {hostPath: {path: ''}}}", []string{"spec.storage.hostPath.path"}},
		"processor and storage": {"{processor: {}, storage: {hostPath: {path: ..}}}", []string{"spec.processor", "spec.storage.hostPath.path"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s OperationSpec
			tc.check(t, &s, func() field.ErrorList {
				_, errs := s.Call()
				return errs
			})
		})
	}
}

func TestMessageIsBounded(t *testing.T) {
	t.Parallel()
	var errs field.ErrorList
	for range 25 {
		errs = append(errs, field.Invalid(field.NewPath("spec"), strings.Repeat("é", 10000), "is long"))
	}
	text := Message(errs)
	if len(text) > 11*(maxErrorBytes+10) || !strings.HasSuffix(text, "and 15 more") || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	if got := Message(nil); got != "" {
		t.Errorf("message of no errors = %q", got)
	}
}

func TestNodeLabelValue(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 60) + ".example.com"
	for name, tc := range map[string]struct{ node, want string }{
		"short":       {"node-1.example.com", "node-1.example.com"},
		"63 bytes":    {strings.Repeat("n", 63), strings.Repeat("n", 63)},
		"64 bytes":    {strings.Repeat("n", 64), "sha256-ce068a195ab380a813c713035ed74921acee4d3b"},
		"with domain": {long, NodeLabelValue(long)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := NodeLabelValue(tc.node)
			if got != tc.want {
				t.Errorf("value = %q, want %q", got, tc.want)
			}
			if wrong := validation.IsValidLabelValue(got); len(wrong) > 0 {
				t.Errorf("%q is no label value: %v", got, wrong)
			}
			if wrong := validation.IsDNS1123Subdomain(AgentLeaseName(tc.node)); len(wrong) > 0 {
				t.Errorf("%q is no name of a Lease: %v", AgentLeaseName(tc.node), wrong)
			}
		})
	}
	if NodeLabelValue(long) == NodeLabelValue("x"+long) {
		t.Error("two nodes have one label value")
	}
}
