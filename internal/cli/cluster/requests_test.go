// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
)

// recordedServer is an API server that gives the answers of a test by path, and records its requests.
type recordedServer struct {
	answers map[string]string // by method and path, in JSON; others are not served

	mu    sync.Mutex
	asked []string
}

func (s *recordedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Method + " " + r.URL.Path
	query := r.URL.Query()
	query.Del("timeout")
	s.asked = append(s.asked, strings.TrimSuffix(key+"?"+query.Encode(), "?"))
	w.Header().Set("Content-Type", "application/json")
	answer, ok := s.answers[key]
	switch {
	case !ok:
		http.NotFound(w, r)
	case answer == "wait":
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
	default:
		if _, code, failed := strings.Cut(answer, `"code":`); failed {
			var status int
			if n, _ := fmt.Sscan(code, &status); n == 1 { // and not the code of a fault
				w.WriteHeader(status)
			}
		}
		fmt.Fprint(w, answer)
	}
}

// failure is the answer of an API server that refuses.
func failure(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"details":{"kind":"x","name":"x"},"code":%d}`, message, reason, code)
}

// missing is the answer for an object of a resource that is not there.
func missing(resource string) string {
	return strings.ReplaceAll(failure(http.StatusNotFound, "NotFound", "gone"), `"kind":"x"`, fmt.Sprintf(`"kind":%q`, resource))
}

// TestRequests: each verb asks for these paths and no other, and prints the next step for an answer.
func TestRequests(t *testing.T) {
	t.Parallel()
	const (
		faultsPath  = oursPath + "/namespaces/shop/mountfaults"
		noFaults    = `{"apiVersion":"diagnosis.kubediag.org/v1","kind":"MountFaultList","metadata":{"resourceVersion":"1"},"items":[]}`
		diagnosis   = `{"apiVersion":"diagnosis.kubediag.org/v1","kind":"Diagnosis","metadata":{"namespace":"shop","name":"web","uid":"u"},"spec":{"nodeName":"n"},"status":{"phase":"Succeeded"}}`
		table       = `{"apiVersion":"meta.k8s.io/v1","kind":"Table","columnDefinitions":[{"name":"Name","type":"string"},{"name":"Phase","type":"string"}],"rows":[{"cells":["web","Succeeded"],"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"namespace":"shop","name":"web"}}}]}`
		agentsQuery = "?labelSelector=app.kubernetes.io%2Fcomponent%3Dagent"
	)
	for name, tc := range map[string]struct {
		args    []string
		answers map[string]string
		status  int
		says    string
		asked   []string
	}{
		"no fault": {
			args: []string{"faults"}, status: verb.StatusDone, says: "✓ No fault is known in namespace shop.",
			answers: map[string]string{
				faultsPath: noFaults, leasesPath: `{"apiVersion":"coordination.k8s.io/v1","kind":"LeaseList","items":[]}`,
				setsPath:            `{"apiVersion":"apps/v1","kind":"DaemonSetList","items":[{"metadata":{"name":"agent"}}]}`,
				"GET /api/v1/nodes": `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","items":[]}`,
			},
			asked: []string{faultsPath, leasesPath + "?labelSelector=diagnosis.kubediag.org%2Fagent", setsPath + agentsQuery, "GET /api/v1/nodes?labelSelector=kubernetes.io%2Fos%21%3Dwindows"},
		},
		"not installed": {
			args: []string{"faults"}, status: verb.StatusFailed, says: "kubediag: faults: kubediag is not installed: the API server serves no mountfaults.diagnosis.kubediag.org: ",
			asked: []string{faultsPath},
		},
		"forbidden": {
			args: []string{"faults", "-A"}, status: verb.StatusRefused, says: `kubediag: faults: refused: "eve" cannot list resource "mountfaults"`,
			answers: map[string]string{oursPath + "/mountfaults": failure(http.StatusForbidden, "Forbidden", `"eve" cannot list resource "mountfaults"`)},
			asked:   []string{oursPath + "/mountfaults"},
		},
		"unauthorized": {
			args: []string{"faults"}, status: verb.StatusFailed, says: "the API server does not accept the credentials of the kubeconfig",
			answers: map[string]string{faultsPath: failure(http.StatusUnauthorized, "Unauthorized", "who")}, asked: []string{faultsPath},
		},
		"no answer": {
			args: []string{"faults", "--request-timeout=1s"}, status: verb.StatusFailed,
			says:    "list mountfaults.diagnosis.kubediag.org: the API server did not answer within 1s: give it more with --request-timeout",
			answers: map[string]string{faultsPath: "wait"}, asked: []string{faultsPath},
		},
		"table": {
			args: []string{"get"}, status: verb.StatusDone, says: "NAME   PHASE\nweb    Succeeded\n",
			answers: map[string]string{oursPath + "/namespaces/shop/diagnoses": table}, asked: []string{oursPath + "/namespaces/shop/diagnoses"},
		},
		"one as YAML": {
			args: []string{"get", "web", "-o", "yaml"}, status: verb.StatusDone, says: "apiVersion: diagnosis.kubediag.org/v1\nkind: Diagnosis\n",
			answers: map[string]string{oursPath + "/namespaces/shop/diagnoses/web": diagnosis}, asked: []string{oursPath + "/namespaces/shop/diagnoses/web"},
		},
		"no such Diagnosis": {
			args: []string{"report", "web"}, status: verb.StatusFailed, says: "kubediag: report: diagnoses.diagnosis.kubediag.org shop/web: not found",
			answers: map[string]string{oursPath + "/namespaces/shop/diagnoses/web": missing("diagnoses")},
			asked:   []string{oursPath + "/namespaces/shop/diagnoses/web"},
		},
		"nothing to show": {
			args: []string{"show", "web"}, status: verb.StatusDone, says: "! No MountFault and no Diagnosis is about pod shop/web. To look now:\n  kubectl kubediag run pod/web -n shop\n",
			answers: map[string]string{
				faultsPath + "/web": missing("mountfaults"), oursPath + "/namespaces/shop/diagnoses/web": missing("diagnoses"), faultsPath: noFaults,
				oursPath + "/namespaces/shop/diagnoses":     `{"kind":"DiagnosisList","items":[]}`,
				oursPath + "/namespaces/kubediag/diagnoses": failure(http.StatusForbidden, "Forbidden", `"eve" cannot list resource "diagnoses"`),
			},
			asked: []string{
				faultsPath + "/web", oursPath + "/namespaces/shop/diagnoses/web", faultsPath, oursPath + "/namespaces/shop/diagnoses",
				oursPath + "/namespaces/kubediag/diagnoses",
			},
		},
		"names": {
			args: []string{"__complete", "report", ""}, status: verb.StatusDone, says: "web\n",
			answers: map[string]string{oursPath + "/namespaces/shop/diagnoses": `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","items":[{"metadata":{"name":"web"}}]}`},
			asked:   []string{oursPath + "/namespaces/shop/diagnoses"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded := &recordedServer{answers: tc.answers}
			args := slices.Insert(tc.args, 1, "-n", "shop", "--server="+serverOf(t, recorded))
			if out, status := runAs(t, Name, args...); status != tc.status || !strings.Contains(out, tc.says) {
				t.Errorf("status %d, want %d, %q in:\n%s", status, tc.status, tc.says, out)
			}
			recorded.mu.Lock()
			defer recorded.mu.Unlock()
			if !slices.Equal(recorded.asked, tc.asked) {
				t.Errorf("asked for %q, want %q", recorded.asked, tc.asked)
			}
		})
	}
}
