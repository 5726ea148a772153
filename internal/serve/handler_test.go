// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"kubediag.org/kubediag/internal/processor"
)

// calls is a Caller that has one processor for each end that a call can have, and remembers what it was asked.
type calls struct {
	mu    sync.Mutex
	asked []processor.Request
	block chan struct{}
}

func (c *calls) Known(name string) bool { return strings.HasPrefix(name, "known") }

func (c *calls) Call(ctx context.Context, name string, r processor.Request) (processor.Result, error) {
	c.mu.Lock()
	c.asked = append(c.asked, r)
	c.mu.Unlock()
	switch name {
	case "knownNegative":
		return processor.Result{NotApplicable: "no stale mount"}, nil
	case "knownBroken":
		return processor.Result{}, errors.New("reading mountinfo: boom")
	case "knownEmpty":
		return processor.Result{}, nil
	case "knownSlow":
		select {
		case <-c.block:
		case <-ctx.Done():
			return processor.Result{}, ctx.Err()
		}
	}
	return processor.Result{Values: map[string]string{"a.b": "c"}}, nil
}

// people is a Reviewer: a token is a user name, and what a user may do is listed.
type people map[string][]string

func (p people) User(_ context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if name == "outage" {
		return nil, errors.New("reviewing token: connection refused")
	}
	if _, ok := p[name]; !ok {
		return nil, nil
	}
	return &authenticationv1.UserInfo{Username: name}, nil
}

func (p people) Allowed(_ context.Context, u *authenticationv1.UserInfo, s authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	what := ""
	if s.NonResourceAttributes != nil {
		what = s.NonResourceAttributes.Verb + " processors"
	} else {
		what = s.ResourceAttributes.Verb + " " + s.ResourceAttributes.Namespace + "/" + s.ResourceAttributes.Name
	}
	for _, allowed := range p[u.Username] {
		if allowed == what {
			return true, nil
		}
	}
	return false, nil
}

var everybody = people{
	"caller":   {"post processors", "get ns/mine"},
	"stranger": {},
}

func newTestHandler(c *calls, workers int, timeout time.Duration) *Handler {
	return NewHandler(HandlerOptions{
		Caller: c, Reviewer: everybody, Node: "n1", Timeout: timeout, Workers: workers, Log: logr.Discard(),
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	const aboutPod = `{"pod.namespace":"ns","pod.name":"mine","container":"c","x":"y"}`
	for name, tc := range map[string]struct {
		method, path, user, kind, body string
		code                           int
		want                           string
	}{
		"a result":                {code: 200, want: `{"a.b":"c"}` + "\n"},
		"no results":              {path: "/processor/knownEmpty", code: 200, want: "{}\n"},
		"a clean negative":        {path: "/processor/knownNegative", code: 422, want: "no stale mount\n"},
		"a failure":               {path: "/processor/knownBroken", code: 500, want: "reading mountinfo: boom\n"},
		"about a pod":             {body: aboutPod, code: 200, want: `{"a.b":"c"}` + "\n"},
		"JSON by name":            {kind: "application/json; charset=utf-8", code: 200, want: `{"a.b":"c"}` + "\n"},
		"GET":                     {method: "GET", code: 405, want: "method \"GET\": must be POST\n"},
		"nobody":                  {user: "nobody", code: 401, want: "a bearer token of the cluster is needed\n"},
		"a user without rights":   {user: "stranger", code: 403, want: "user \"stranger\" may not post to /processor/known\n"},
		"reviews fail":            {user: "outage", code: 500, want: "cannot tell who you are\n"},
		"another's pod":           {body: `{"pod.namespace":"ns","pod.name":"other"}`, code: 403, want: "user \"caller\" may not get pod ns/other\n"},
		"no such processor":       {path: "/processor/unknown", code: 404, want: "no processor at \"/processor/unknown\"\n"},
		"no processor":            {path: "/processor/", code: 404, want: "no processor at \"/processor/\"\n"},
		"another path":            {path: "/known", code: 404, want: "no processor at \"/known\"\n"},
		"a form":                  {kind: "application/x-www-form-urlencoded", code: 400, want: "Content-Type \"application/x-www-form-urlencoded\": must be application/json\n"},
		"no body":                 {body: " ", code: 400, want: "the body must be a JSON object of strings: unexpected end of JSON input\n"},
		"a list":                  {body: "[]", code: 400, want: "the body must be a JSON object of strings: json: cannot unmarshal array into Go value of type map[string]*string\n"},
		"null":                    {body: "null", code: 400, want: "the body must be a JSON object of strings, not null\n"},
		"a null value":            {body: `{"k":null}`, code: 400, want: "the value of \"k\" must be a string, not null\n"},
		"a number":                {body: `{"k":1}`, code: 400, want: "the body must be a JSON object of strings: json: cannot unmarshal number into Go value of type string\n"},
		"two objects":             {body: `{} {}`, code: 400, want: "the body must be a JSON object of strings: invalid character '{' after top-level value\n"},
		"too much":                {body: `{"k":"` + strings.Repeat("x", maxBodyBytes) + `"}`, code: 413, want: "the body must be 2097152 bytes at most\n"},
		"a pod without namespace": {body: `{"pod.name":"p"}`, code: 400, want: "pod.namespace \"\" and pod.name \"p\" must be set together\n"},
		"another node":            {body: `{"node":"n2"}`, code: 400, want: "node \"n2\": this is node \"n1\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			or := func(s, otherwise string) string {
				if s == "" {
					return otherwise
				}
				return s
			}
			r := httptest.NewRequest(or(tc.method, "POST"), or(tc.path, "/processor/known"), strings.NewReader(or(tc.body, "{}")))
			r.Header.Set("Authorization", "Bearer "+or(tc.user, "caller"))
			if tc.kind != "" {
				r.Header.Set("Content-Type", tc.kind)
			}
			w := httptest.NewRecorder()
			newTestHandler(&calls{}, 1, time.Minute).ServeHTTP(w, r)
			if w.Code != tc.code {
				t.Errorf("status %d, want %d", w.Code, tc.code)
			}
			if diff := cmp.Diff(tc.want, w.Body.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRequestIsWhatTheCallerMaySay(t *testing.T) {
	t.Parallel()
	c := &calls{}
	body := `{"pod.namespace":"ns","pod.name":"mine","container":"app","diagnosis.uid":"forged","x":"y"}`
	r := httptest.NewRequest("POST", "/processor/known", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer caller")
	newTestHandler(c, 1, time.Minute).ServeHTTP(httptest.NewRecorder(), r)
	if len(c.asked) != 1 {
		t.Fatalf("%d calls", len(c.asked))
	}
	want := map[string]string{"pod.namespace": "ns", "pod.name": "mine", "container": "app", "node": "n1", "x": "y"}
	if diff := cmp.Diff(want, c.asked[0].Data()); diff != "" {
		t.Errorf("the processor sees (-want +got):\n%s", diff)
	}
}

func TestNobodyIsAskedForMoreThanIsNeeded(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{"no token": "nobody", "no right": "stranger"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &calls{}
			body := &watchedBody{}
			r := httptest.NewRequest("POST", "/processor/known", body)
			r.Header.Set("Authorization", "Bearer "+user)
			newTestHandler(c, 1, time.Minute).ServeHTTP(httptest.NewRecorder(), r)
			if len(c.asked) > 0 || body.read {
				t.Errorf("calls %d, body read %v", len(c.asked), body.read)
			}
		})
	}
}

type watchedBody struct{ read bool }

func (b *watchedBody) Read([]byte) (int, error) {
	b.read = true
	return 0, io.EOF
}

func TestCallsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	c := &calls{block: make(chan struct{})}
	h := newTestHandler(c, 1, time.Minute)
	post := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/processor/knownSlow", strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer caller")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	first := make(chan int)
	go func() { first <- post().Code }()
	for busy := false; !busy; {
		c.mu.Lock()
		busy = len(c.asked) == 1
		c.mu.Unlock()
	}
	if w := post(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a second call at once got %d", w.Code)
	}
	close(c.block)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first call got %d", code)
	}
	if w := post(); w.Code != http.StatusOK {
		t.Errorf("a call after it got %d", w.Code)
	}
}

func TestCallEndsInTime(t *testing.T) {
	t.Parallel()
	h := newTestHandler(&calls{}, 1, 10*time.Millisecond)
	r := httptest.NewRequest("POST", "/processor/knownSlow", strings.NewReader("{}"))
	r.Header.Set("Authorization", "Bearer caller")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "deadline exceeded") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"a":"b"}`, `{"a":null}`, "null", `{"a":{"b":"c"}}`, `{"a":"\ud800"}`, "[]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		values, err := parse(body)
		if (values == nil) == (err == nil) {
			t.Fatalf("values %v and error %v", values, err)
		}
		if err != nil {
			no := (*refusal)(nil)
			if !errors.As(err, &no) || no.code != http.StatusBadRequest {
				t.Fatalf("error %v", err)
			}
			return
		}
		again, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parse(again); err != nil || !cmp.Equal(values, back) {
			t.Fatalf("%v became %v (%v)", values, back, err)
		}
	})
}
