// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/internal/repair"
)

// What API servers list of the group without a name. Those before 1.22 take evictions in another version.
const (
	resourcesOf118 = `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","namespaced":true,"kind":"Pod"},
		{"name":"pods/eviction","namespaced":true,"group":"policy","version":"v1beta1","kind":"Eviction","verbs":["create"]}]}`
	resourcesOf122 = `{"kind":"APIResourceList","groupVersion":"v1","resources":[
		{"name":"pods/eviction","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]}]}`
)

// evictions is an API server that answers every eviction in one way.
type evictions struct {
	*httptest.Server
	resources string
	status    int    // of the answer
	answer    string // its body
	header    http.Header
	podUID    string // that GET of the pod has; empty: there is no pod

	asked atomic.Int32
	got   map[string]any // what was asked for
}

func (e *evictions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1":
		_, _ = io.WriteString(w, e.resources)
	case r.Method == http.MethodPost && r.URL.Path == "/api/v1/namespaces/default/pods/web-1/eviction":
		e.asked.Add(1)
		_ = json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&e.got)
		for key, values := range e.header {
			w.Header()[key] = values
		}
		w.WriteHeader(e.status)
		_, _ = io.WriteString(w, e.answer)
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/default/pods/web-1" && e.podUID != "":
		_, _ = fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1","namespace":"default","uid":%q}}`, e.podUID)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, failureBody(http.StatusNotFound, "NotFound", "", ""))
	}
}

// failureBody is the body of an answer that is no success.
func failureBody(code int, reason, message, details string) string {
	if details == "" {
		details = "{}"
	}
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":%q,"details":%s,"code":%d}`, message, reason,
		details, code)
}

func (e *evictions) evictPod(t *testing.T) error {
	t.Helper()
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	o := options{AllowEviction: true}
	// JSON, so that the test can read it.
	evictor, err := o.newEvictor(&rest.Config{Host: e.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	must(t, err)
	return evictor.Evict(t.Context(), "default", "web-1", "u1")
}

func TestEvictionInTheServersVersion(t *testing.T) {
	t.Parallel()
	for version, resources := range map[string]string{"policy/v1beta1": resourcesOf118, "policy/v1": resourcesOf122} {
		e := &evictions{resources: resources, status: http.StatusCreated, answer: `{"kind":"Status","apiVersion":"v1","status":"Success"}`}
		must(t, e.evictPod(t))
		delete(e.got["metadata"].(map[string]any), "creationTimestamp")
		want := map[string]any{
			"apiVersion": version, "kind": "Eviction", "metadata": map[string]any{"namespace": "default", "name": "web-1"},
			"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": "u1"}},
		}
		if diff := cmp.Diff(want, e.got); diff != "" {
			t.Errorf("%s: eviction (-want +got):\n%s", version, diff)
		}
	}
}

func TestNoEvictions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		resources string
		want      error
	}{
		"none":      {`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods"}]}`, errNoEviction},
		"a version": {strings.Replace(resourcesOf122, `"v1","kind":"Eviction"`, `"v7","kind":"Eviction"`, 1), errEvictionVersion},
		"a group":   {strings.Replace(resourcesOf122, `"policy"`, `"other"`, 1), errNoEviction},
	} {
		e := &evictions{resources: c.resources}
		if err := e.evictPod(t); !errors.Is(err, c.want) || e.asked.Load() > 0 {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	var o options
	if e, err := o.newEvictor(&rest.Config{}); e != nil || err != nil {
		t.Errorf("without the flag: %v, %v, want none", e, err)
	}
}

func TestEvictionRefused(t *testing.T) {
	t.Parallel()
	const budget = "The disruption budget web-pdb needs 2 healthy pods and has 2 currently"
	const causes = `{"causes":[{"reason":"DisruptionBudget","message":"` + budget + `"}]}`
	const over = "Cannot evict pod as it would violate the pod's disruption budget."
	for name, c := range map[string]struct {
		server  *evictions
		want    error  // nil: none of those that are known
		blocked string // part of the reason
		after   time.Duration
	}{
		"by a budget": {
			server:  &evictions{status: 429, answer: failureBody(429, "TooManyRequests", over, causes)},
			blocked: over + " " + budget,
		},
		"by a budget that is being counted": {
			server: &evictions{
				status: 429, header: http.Header{"Retry-After": {"7"}},
				answer: failureBody(429, "TooManyRequests", "The disruption budget web-pdb is still being processed by the server.", `{"retryAfterSeconds":7}`),
			},
			blocked: "web-pdb is still being processed", after: 7 * time.Second,
		},
		"gone":           {server: &evictions{status: 404, answer: failureBody(404, "NotFound", `pods "web-1" not found`, "")}, want: repair.ErrGone},
		"forbidden":      {server: &evictions{status: 403, answer: failureBody(403, "Forbidden", "no", "")}, want: repair.ErrForbidden},
		"created again":  {server: &evictions{status: 409, answer: failureBody(409, "Conflict", "Precondition failed", ""), podUID: "u2"}, want: repair.ErrGone},
		"gone meanwhile": {server: &evictions{status: 409, answer: failureBody(409, "Conflict", "Precondition failed", "")}, want: repair.ErrGone},
		"changed":        {server: &evictions{status: 409, answer: failureBody(409, "Conflict", "the object has been modified", ""), podUID: "u1"}},
		"two budgets": {
			server: &evictions{status: 500, answer: failureBody(500, "InternalError", "This pod has more than one PodDisruptionBudget", "")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.server.resources = resourcesOf122
			err := c.server.evictPod(t)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || c.want == nil && errors.Is(err, repair.ErrGone) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			var blocked *repair.BlockedError
			if errors.As(err, &blocked) != (c.blocked != "") {
				t.Fatalf("error %v", err)
			}
			if blocked != nil && (!strings.Contains(blocked.Reason, c.blocked) || blocked.After != c.after) {
				t.Errorf("blocked by %q, after %v, want %q and %v", blocked.Reason, blocked.After, c.blocked, c.after)
			}
			if n := c.server.asked.Load(); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}
