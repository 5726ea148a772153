// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/schematest"
	"kubediag.org/kubediag/internal/cli/verb"
)

// statusOf is a report of these objects at noon, that does not depend on their order.
func statusOf(faults []v1.MountFault, policies []v1.RecoveryPolicy, diagnoses []v1.Diagnosis) *statusReport {
	r := &statusReport{
		SchemaVersion: 1, Time: noon, Causes: []statusCause{}, Unwatched: []string{}, Waiting: []statusWaiting{}, Policies: []statusPolicy{},
		Repairs: []statusRepair{}, Unknown: map[string]string{},
	}
	slices.Reverse(faults)
	slices.Reverse(policies)
	slices.Reverse(diagnoses)
	r.addFaults(pointersTo(faults))
	r.addPolicies(policies)
	r.addDiagnoses(&client{}, pointersTo(diagnoses))
	return r
}

func pointersTo[O any](items []O) (all []*O) {
	for i := range items {
		all = append(all, &items[i])
	}
	return all
}

// policyOf is a policy with a mode.
func policyOf(name string, mode v1.RecoveryMode, change func(*v1.RecoveryPolicy)) v1.RecoveryPolicy {
	p := v1.RecoveryPolicy{Spec: v1.RecoveryPolicySpec{Mode: mode}}
	p.Name = name
	if change != nil {
		change(&p)
	}
	return p
}

// repaired is a Diagnosis that has ended this long before noon, with one change.
func repaired(pod, origin string, before time.Duration, phase v1.DiagnosisPhase) v1.Diagnosis {
	ended := metav1.NewTime(noon.Add(-before))
	d := v1.Diagnosis{Spec: v1.DiagnosisSpec{Mode: v1.ModeRecord, NodeName: "worker-7", PodReference: &v1.PodReference{Namespace: "shop", Name: pod}}}
	d.Namespace, d.Name, d.Labels = "kubediag", pod, map[string]string{v1.LabelOrigin: origin}
	d.Status = v1.DiagnosisStatus{
		Phase: phase, CompletionTime: &ended, Faults: []v1.Fault{{Code: "StaleSubPath", Pod: &v1.FaultPod{Namespace: "shop", Name: pod}}},
		Operations: []v1.OperationRun{{Actions: []v1.Action{{Phase: v1.ActionDone}}}},
	}
	return d
}

// statusReports are a clean cluster, one fault, and 300 with everything else that there can be.
func statusReports() map[string]*statusReport {
	waiting := func(name string, before time.Duration) v1.Diagnosis {
		d := v1.Diagnosis{Spec: v1.DiagnosisSpec{Mode: v1.ModeApprove, PodReference: &v1.PodReference{Namespace: "shop", Name: "web-" + name}}}
		d.Namespace, d.Name, d.CreationTimestamp = "kubediag", "web-"+name, metav1.NewTime(noon.Add(-before))
		d.Status.Phase, d.Status.Outcome = v1.DiagnosisRunning, v1.OutcomeAwaitingApproval
		return d
	}
	planned := repaired("other-1", v1.OriginPerson, time.Hour, v1.DiagnosisSucceeded)
	planned.Status.Operations[0].Actions[0].Phase = v1.ActionPlanned
	many := repaired("web-9", v1.OriginSentinel, time.Minute, v1.DiagnosisFailed)
	many.Spec.PodReference, many.Status.Repeats = nil, &v1.Repeats{Count: 40, Failed: 2}
	var faults []v1.MountFault
	for i := range 300 {
		f := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, fmt.Sprintf("app%d-%d", i%12, i))
		if i%3 == 0 {
			f = faultOf("DisconnectedFUSE", v1.ImpactNow, v1.HealDriver, fmt.Sprintf("trainer%d-%d", i, i))
			f.Status.Driver, f.Status.Node = "csi.juicefs.com", fmt.Sprintf("worker-%d", i%7)
		}
		faults = append(faults, *f)
	}
	full := statusOf(faults, []v1.RecoveryPolicy{
		policyOf("dead-volumes", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.Windows = []v1.RecoveryWindow{{Schedule: "0 1 * * *", DurationSeconds: 3600}}
		}),
		policyOf("broken", v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
			p.Spec.FaultCodes = []string{"HungMount"}
			p.Status.Breakers = []v1.BreakerStatus{{Code: "HungMount", State: v1.BreakerOpen, Message: "4 repairs in a row have failed, on 3 nodes of the pool, and " + strings.Repeat("more ", 40)}}
			p.Status.Conditions = []metav1.Condition{{Type: v1.ConditionEscalation, Status: metav1.ConditionFalse, Reason: v1.ReasonMissingRight, Message: "the manager may not cordon"}}
		}),
		policyOf("always", v1.RecoveryAutomatic, nil),
		policyOf("pause", v1.RecoveryObserve, func(p *v1.RecoveryPolicy) { p.Spec.Paused, p.Spec.FaultCodes = true, []string{"HeldDevice"} }),
	}, []v1.Diagnosis{
		waiting("a", time.Hour), waiting("b", 2*time.Hour), waiting("c", time.Minute), planned, many,
		repaired("web-1", v1.OriginSentinel, time.Hour, v1.DiagnosisSucceeded), repaired("web-2", v1.OriginSentinel, 2*time.Hour, v1.DiagnosisSucceeded),
		repaired("db-0", v1.OriginPolicy, 11*time.Hour, v1.DiagnosisFailed), repaired("old-0", v1.OriginPolicy, 13*time.Hour, v1.DiagnosisFailed),
		repaired("api-0", v1.OriginPerson, 3*time.Hour, v1.DiagnosisSucceeded), repaired("cache-0", v1.OriginTrigger, 4*time.Hour, v1.DiagnosisSucceeded),
	})
	full.Unwatched = []string{"2 of 9 nodes are not watched: worker-1 (no agent), worker-2 (agent silent for 3m)", "the sentinel of DaemonSet kubediag/kubediag-agent is off: its agents look for no fault by themselves"}
	blind := statusOf(nil, nil, nil)
	blind.Unwatched = []string{`it is not known which nodes are watched: refused: leases is forbidden; Role kubediag-lease-reader of namespace kubediag gives the right to see it`}
	for _, field := range []string{"causes", "waiting", "repairs", "policies"} {
		blind.Unknown[field] = "you may not list " + field + " in all namespaces; ClusterRole kubediag-view gives that right"
	}
	return map[string]*statusReport{
		"0": statusOf(nil, []v1.RecoveryPolicy{policyOf("always", v1.RecoveryAutomatic, nil)}, nil), "300": full, "blind": blind,
		"1": statusOf([]v1.MountFault{*faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "web-a")}, nil, []v1.Diagnosis{waiting("a", time.Minute)}),
	}
}

func TestStatusSchema(t *testing.T) {
	t.Parallel()
	written := map[string]any{}
	for name, r := range statusReports() {
		written[name] = r
	}
	words := func(modes ...v1.RecoveryMode) (all []string) {
		return verb.Distinct(modes, func(m v1.RecoveryMode) string { return string(m) })
	}
	schematest.Check(t, "kubectl kubediag status", schematest.TypeSchema(reflect.TypeFor[statusReport](), map[reflect.Type][]string{
		reflect.TypeFor[v1.RecoveryMode](): words(v1.RecoveryModes()...),
		reflect.TypeFor[v1.FaultImpact]():  {string(v1.ImpactNow), string(v1.ImpactTerminating), string(v1.ImpactNextStart), string(v1.ImpactDetach), string(v1.ImpactCleanup)},
		reflect.TypeFor[v1.FaultHeal]():    {string(v1.HealAutomatic), string(v1.HealSafe), string(v1.HealDriver), string(v1.HealPerson)},
	}), "unknown", written)
}

// TestStatusAsks: it asks for these paths, a right that is missing is named and has no tick, and a namespace narrows all of it.
func TestStatusAsks(t *testing.T) {
	t.Parallel()
	const record = `{"kind":"DiagnosisList","items":[
		{"metadata":{"namespace":"kubediag","name":"a","labels":{"diagnosis.kubediag.org/origin":"sentinel"}},"spec":{"mode":"Record","podReference":{"namespace":"shop","name":"web-0"}},"status":{"phase":"Succeeded","completionTime":%[1]q,"operations":[{"actions":[{"phase":"Done"}]}]}},
		{"metadata":{"namespace":"kubediag","name":"b"},"spec":{"mode":"Record","podReference":{"namespace":"bank","name":"db-0"}},"status":{"phase":"Succeeded","completionTime":%[1]q,"operations":[{"actions":[{"phase":"Done"}]}]}}]}`
	answers := map[string]string{
		oursPath + "/namespaces/shop/mountfaults":   `{"kind":"MountFaultList","items":[]}`,
		oursPath + "/recoverypolicies":              failure(http.StatusForbidden, "Forbidden", `"eve" cannot list resource "recoverypolicies"`),
		oursPath + "/namespaces/shop/diagnoses":     `{"kind":"DiagnosisList","items":[]}`,
		oursPath + "/namespaces/kubediag/diagnoses": fmt.Sprintf(record, time.Now().UTC().Format(time.RFC3339)),
		leasesPath:          `{"kind":"LeaseList","items":[]}`,
		setsPath:            `{"kind":"DaemonSetList","items":[]}`,
		"GET /api/v1/nodes": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[]}`,
	}
	server := serverOf(t, &recordedServer{answers: answers})
	for name, tc := range map[string]struct {
		args   []string
		status int
		says   []string
	}{
		"text": {nil, verb.StatusFailed, []string{
			"No fault is known in namespace shop", "! Allowed now: not known: you may not list recoverypolicies in all namespaces; ClusterRole kubediag-view",
			"Done in the last 12 hours: 1 repair, and 0 failed\n", "sentinel  shop/web\n",
		}},
		"json":       {[]string{"-o", "json"}, verb.StatusFailed, []string{`"policies": "you may not list`, `"subject": "shop/web"`}},
		"json watch": {[]string{"-o", "json", "-w"}, verb.StatusFailed, []string{"--watch: takes no --output"}},
		"page":       {[]string{"-o", "html", "--lang=zh"}, verb.StatusFailed, []string{`<html lang="zh-CN">`, "not known: you may not list recoverypolicies", "shop/web</td>"}},
	} {
		out, status := runAs(t, Name, append([]string{"status", "-n", "shop", "--server=" + server}, tc.args...)...)
		for _, says := range tc.says {
			if status != tc.status || !strings.Contains(out, says) || strings.Contains(out, "✓") || strings.Contains(out, "bank") {
				t.Errorf("%s: status %d, want %d, %q in:\n%s", name, status, tc.status, says, out)
			}
		}
	}
}
