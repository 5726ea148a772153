// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// Paths of the API server of these tests.
const (
	oursPath   = "GET /apis/diagnosis.kubediag.org/v1"
	leasesPath = "GET /apis/coordination.k8s.io/v1/namespaces/kubediag/leases"
	setsPath   = "GET /apis/apps/v1/namespaces/kubediag/daemonsets"
)

// liveLease is the Lease of the agent of a node that was renewed just now.
func liveLease(node string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"holderIdentity":%q,"renewTime":%q}}`, v1.AgentLeaseName(node), node, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
}

// nodeAnswers are those about two nodes: worker-7 is watched and has a fault, worker-8 has no agent.
func nodeAnswers(t *testing.T) map[string]string {
	t.Helper()
	stale := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "api-a")
	return map[string]string{
		oursPath + "/mountfaults": encoded(t, v1.MountFaultList{Items: []v1.MountFault{*stale}}),
		"GET /api/v1/nodes":       `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{"metadata":{"name":"worker-7"}},{"metadata":{"name":"worker-8"}}]}`,
		leasesPath:                `{"kind":"LeaseList","items":[` + liveLease("worker-7") + `]}`, setsPath: `{"kind":"DaemonSetList","items":[]}`,
		"GET /api/v1/nodes/worker-7": `{"kind":"Node","apiVersion":"v1","metadata":{"name":"worker-7"}}`,
		"GET /api/v1/nodes/worker-8": `{"kind":"Node","apiVersion":"v1","metadata":{"name":"worker-8"}}`,
		"GET /api/v1/nodes/no":       missing("nodes"),
		"GET /api/v1/pods": `{"kind":"PodList","apiVersion":"v1","items":[
			{"metadata":{"namespace":"shop","name":"web"},"spec":{"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"db"}}],
			 "containers":[{"name":"c","volumeMounts":[{"name":"data","mountPath":"/data"}]}],
			 "ephemeralContainers":[{"name":"debug","volumeMounts":[{"name":"data","mountPath":"/mnt"}]}]}},
			{"metadata":{"namespace":"shop","name":"api-a"},"spec":{"volumes":[{"name":"tmp","emptyDir":{}},{"name":"conf","configMap":{"name":"api"}}],
			 "containers":[{"name":"c","volumeMounts":[{"name":"conf","mountPath":"/etc/api.conf","subPath":"api.conf"}]}]}},
			{"metadata":{"namespace":"shop","name":"over"},"spec":{"volumes":[{"name":"conf","emptyDir":{}}]},"status":{"phase":"Succeeded"}}]}`,
	}
}

// TestMapOfNodes: a node says in words how it is, and the worst comes first.
func TestMapOfNodes(t *testing.T) {
	t.Parallel()
	answers := nodeAnswers(t)
	_, page := pageServerOf(t, &recordedServer{answers: answers}).get(t, http.MethodGet, "/nodes", "")
	tile := regexp.MustCompile(`<li class="(\w*)"><b[^>]*>(.)</b> <a href="/node/([^"]+)">[^<]*</a> <small>([^<]*)</small>`)
	var got []string
	for _, m := range tile.FindAllStringSubmatch(page, -1) {
		got = append(got, strings.Join(m[1:], " "))
	}
	if want := "warn ! worker-7 1 fault: next start, warn ! worker-8 not watched: no agent"; strings.Join(got, ", ") != want || !strings.Contains(page, "1 of 2 nodes with faults; 1 not watched in full.") {
		t.Errorf("tiles %q, want %q:\n%s", got, want, page)
	}
	answers[oursPath+"/mountfaults"] = encoded(t, v1.MountFaultList{})
	answers[leasesPath] = `{"kind":"LeaseList","items":[` + liveLease("worker-7") + "," + liveLease("worker-8") + `]}`
	if _, page = pageServerOf(t, &recordedServer{answers: answers}).get(t, http.MethodGet, "/nodes", ""); !strings.Contains(page, "No fault is known on 2 nodes, and each is watched in full.") || strings.Count(page, "<small>no fault known</small>") != 2 {
		t.Errorf("all well:\n%s", page)
	}
	inPart := strings.Replace(liveLease("worker-8"), `"metadata":{`, `"metadata":{"labels":{"diagnosis.kubediag.org/not-judged":"3"},`, 1)
	answers[leasesPath] = `{"kind":"LeaseList","items":[` + liveLease("worker-7") + "," + inPart + `]}`
	_, page = pageServerOf(t, &recordedServer{answers: answers}).get(t, http.MethodGet, "/nodes", "")
	if strings.Contains(page, `class="verdict good"`) || !strings.Contains(page, "of 2 nodes, 1 are not watched in full") || !strings.Contains(page, "<small>3 mounts or parts not judged</small>") {
		t.Errorf("one node is judged in part:\n%s", page)
	}
	_, page = pageServerOf(t, &recordedServer{answers: answers}).get(t, http.MethodGet, "/node/worker-8", "")
	if strings.Contains(page, `class="verdict good"`) || !strings.Contains(page, "1 node could not be judged in full: worker-8 (3 mounts or parts)") {
		t.Errorf("the page of that node:\n%s", page)
	}
	answers["GET /api/v1/nodes"] = failure(http.StatusForbidden, "Forbidden", `"eve" cannot list resource "nodes"`)
	if _, page = pageServerOf(t, &recordedServer{answers: answers}).get(t, http.MethodGet, "/nodes", ""); strings.Contains(page, `class="verdict good"`) || !strings.Contains(page, "It is not known which nodes are watched") {
		t.Errorf("without the right:\n%s", page)
	}
}

// TestLinksOfANode: each volume of the pods of a node has its state, those with faults first, and no volume is said to be right while the node is
// not watched.
func TestLinksOfANode(t *testing.T) {
	t.Parallel()
	answers := nodeAnswers(t)
	server := &recordedServer{answers: answers}
	links := func(node string) (list []string, page string) {
		_, page = pageServerOf(t, server).get(t, http.MethodGet, "/node/"+node, "")
		_, table, _ := strings.Cut(page, "<h2>Links</h2>")
		for _, row := range regexp.MustCompile(`(?s)<tr>(.*?)</tr>`).FindAllStringSubmatch(table, -1)[1:] {
			list = append(list, strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(row[1], " ")), " "))
		}
		return list, page
	}
	got, page := links("worker-7")
	want := []string{
		"! shop/api-a the file was replaced conf ConfigMap api c: /etc/api.conf (subPath api.conf) StaleSubPath: next start",
		"✓ shop/api-a tmp emptyDir no fault known", "✓ shop/web data claim db c: /data; debug: /mnt no fault known",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || !strings.Contains(page, "subPath bind: broken here") {
		t.Errorf("links\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), page)
	}
	if asked := strings.Join(server.asked, "\n"); !strings.Contains(asked, "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-7") {
		t.Errorf("asked\n%s", asked)
	}
	answers[oursPath+"/mountfaults"] = encoded(t, v1.MountFaultList{})
	if got, page = links("worker-8"); strings.Contains(page, "no fault known") || !strings.HasSuffix(got[0], " not known") || strings.Contains(page, `class="verdict good"`) {
		t.Errorf("a node without an agent:\n%s\n%s", strings.Join(got, "\n"), page)
	}
	if status, page := pageServerOf(t, server).get(t, http.MethodGet, "/node/no", ""); status != http.StatusNotFound {
		t.Errorf("a node that is not there: status %d:\n%s", status, page)
	}
	answers["GET /api/v1/pods"] = failure(http.StatusForbidden, "Forbidden", "no")
	if _, page := pageServerOf(t, server).get(t, http.MethodGet, "/node/worker-7", ""); !strings.Contains(page, "not known: you may not list pods in all namespaces") {
		t.Errorf("without the right:\n%s", page)
	}
}

// TestPagesOfRules: policies have their holds, Triggers the reason why they do not fire, and plans that wait their buttons.
func TestPagesOfRules(t *testing.T) {
	t.Parallel()
	ended := waiting("0b")
	ended.Name, ended.Status.Outcome, ended.Status.Phase = "has-healed", v1.OutcomeHealed, v1.DiagnosisSucceeded
	s := pageServerOf(t, &recordedServer{answers: map[string]string{
		oursPath + "/diagnoses": encoded(t, v1.DiagnosisList{Items: []v1.Diagnosis{*ended, *waiting("0a")}}),
		oursPath + "/recoverypolicies": `{"kind":"RecoveryPolicyList","items":[{"metadata":{"name":"night"},"spec":{"mode":"Automatic","paused":true,"faultCodes":["HungMount"]},
			"status":{"nextWindowTime":"2026-11-28T01:00:00Z"}},{"metadata":{"name":"odd"},"spec":{"mode":"Plan"},"status":{"conditions":[{"type":"Ready","status":"False","reason":"Invalid","message":"no such zone"}]}}]}`,
		oursPath + "/triggers": `{"kind":"TriggerList","items":[{"metadata":{"name":"nightly"},"spec":{"operationSet":"auto","mode":"Plan","sourceTemplate":{"cronTemplate":{"schedule":"0 1 * * *"}}},
			"status":{"fired":4,"lastDiagnosis":"nightly-1","dropped":[{"reason":"QueueFull","count":3}]}},{"metadata":{"name":"alerts"},"spec":{"operationSet":"auto","suspend":true,"sourceTemplate":{"prometheusAlertTemplate":{}}}}]}`,
	}})
	for target, wants := range map[string][]string{
		"/policies": {"2 policies, 1 held", "paused", "HungMount", "2026-11-28 01:00 UTC", "Invalid: no such zone", `<a href="/policies" aria-current="page">`},
		"/triggers": {"2 Triggers", "schedule 0 1 * * *", `href="/diagnosis/kubediag/nightly-1"`, "QueueFull: 3 dropped", "suspended"},
		"/approve":  {"Plans that wait for approval: 1.", `action="/approve/shop/web"`, `action="/refuse/shop/web"`, "would unmount /m", `href="/diagnosis/shop/web"`},
	} {
		status, page := s.get(t, http.MethodGet, target, "")
		for _, want := range wants {
			if status != http.StatusOK || !strings.Contains(page, want) || strings.Contains(page, "has-healed") {
				t.Errorf("%s: status %d, without %q:\n%s", target, status, want, page)
			}
		}
	}
}

// TestGraphAndMounts: the page of a Diagnosis has the path that it took, and each mount as it was and as it is.
func TestGraphAndMounts(t *testing.T) {
	t.Parallel()
	d := waiting("0a")
	d.Spec.OperationSet = "auto"
	d.Status.Phase, d.Status.Outcome, d.Status.AdjacencyListHash, d.Status.CompletionTime = v1.DiagnosisSucceeded, v1.OutcomeHealed, "h1", &metav1.Time{Time: noon}
	d.Status.SucceededPath = v1.Path{{ID: 1, Operation: "look"}, {ID: 2, Operation: "repair"}}
	d.Status.Faults = []v1.Fault{{Code: "StaleSubPath", State: v1.FaultHealed}}
	d.Status.Operations = []v1.OperationRun{{ID: 1, Operation: "look", Phase: v1.OperationSucceeded}, {ID: 2, Operation: "repair", Phase: v1.OperationSucceeded, Actions: []v1.Action{
		{Kind: "Unmount", Target: "/m", Fault: "StaleSubPath", Phase: v1.ActionDone, Message: "put the file in its place", Mount: &v1.Mount{Device: "0:39", Root: "/a//deleted", FSType: "tmpfs", MountInfoID: 412, Namespace: 7}},
		{Kind: "Unmount", Target: "/n", Phase: v1.ActionPlanned, Mount: &v1.Mount{Device: "0:40"}},
	}}}
	answers := map[string]string{
		oursPath + "/namespaces/shop/diagnoses/web": encoded(t, d),
		oursPath + "/operationsets/auto": `{"kind":"OperationSet","metadata":{"name":"auto"},"spec":{"adjacencyList":[{"id":0,"to":[1]},{"id":1,"operation":"look","to":[2,3]},
			{"id":2,"operation":"repair"},{"id":3,"operation":"never"}]},"status":{"adjacencyListHash":"h1"}}`,
	}
	s := pageServerOf(t, &recordedServer{answers: answers})
	_, page := s.get(t, http.MethodGet, "/diagnosis/shop/web", "")
	for _, want := range []string{
		"tmpfs 0:39, root /a//deleted, mount 412 of mount namespace 7", "put the file in its place; StaleSubPath: proven healed by another look", "as before: Planned",
		"1 look: succeeded; 2 repair: succeeded; 3 never: not run",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has not %q:\n%s", want, page)
		}
	}
	if n := strings.Count(page, `class="arrow taken"`); n != 1 {
		t.Errorf("%d edges of the path, want 1:\n%s", n, page)
	}
	answers[oursPath+"/operationsets/auto"] = strings.ReplaceAll(answers[oursPath+"/operationsets/auto"], `"h1"`, `"h2"`)
	if _, page := s.get(t, http.MethodGet, "/diagnosis/shop/web", ""); strings.Contains(page, "<svg") || !strings.Contains(page, "has another graph now") {
		t.Errorf("with another graph:\n%s", page)
	}
}
