// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/ui"
)

const pageHost = "127.0.0.1:7070"

// TestPageGuard: only the browser that had the token is let in, and only for requests from a page of its own.
func TestPageGuard(t *testing.T) {
	t.Parallel()
	g := newPageGuard(pageHost)
	served := 0
	g.next = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	cookie := g.cookieName() + "=" + g.session
	form := url.Values{"token": {g.form}}.Encode()
	for _, tc := range []struct {
		name, method, target, host, cookie, origin, body string
		want                                             int
	}{
		{name: "a stranger", want: http.StatusForbidden},
		{name: "a wrong cookie", cookie: g.cookieName() + "=x", want: http.StatusForbidden},
		{name: "a wrong token", target: "/?token=x", want: http.StatusForbidden},
		{name: "an empty token", target: "/?token=", want: http.StatusForbidden},
		{name: "the token by a name that was rebound", target: "/?token=" + g.token, host: "evil.example.com:7070", want: http.StatusMisdirectedRequest},
		{name: "the token in a POST", method: http.MethodPost, target: "/?token=" + g.token, origin: "http://" + pageHost, want: http.StatusForbidden},
		{name: "the token", target: "//evil.example.com/?token=" + g.token, want: http.StatusSeeOther},
		{name: "the token again", target: "/?token=" + g.token, want: http.StatusForbidden},
		{name: "the cookie", cookie: cookie, want: http.StatusOK},
		{name: "the cookie by another name", cookie: cookie, host: "localhost:7070", want: http.StatusMisdirectedRequest},
		{name: "the cookie from another page", cookie: cookie, origin: "http://127.0.0.1:7071", want: http.StatusMisdirectedRequest},
		{name: "a form", cookie: cookie, method: http.MethodPost, origin: "http://" + pageHost, body: form, want: http.StatusOK},
		{name: "a form without origin", cookie: cookie, method: http.MethodPost, body: form, want: http.StatusForbidden},
		{name: "a form of another page", cookie: cookie, method: http.MethodPost, origin: "null", body: form, want: http.StatusMisdirectedRequest},
		{name: "a form without its token", cookie: cookie, method: http.MethodPost, origin: "http://" + pageHost, want: http.StatusForbidden},
		{name: "a form that is too long", cookie: cookie, method: http.MethodPost, origin: "http://" + pageHost, body: "x=" + strings.Repeat("x", maxFormBytes) + "&" + form, want: http.StatusForbidden},
		{name: "another method", cookie: cookie, method: http.MethodDelete, origin: "http://" + pageHost, want: http.StatusForbidden},
	} {
		r := httptest.NewRequestWithContext(t.Context(), cmp.Or(tc.method, http.MethodGet), cmp.Or(tc.target, "/"), strings.NewReader(tc.body))
		r.Host = cmp.Or(tc.host, pageHost)
		for name, value := range map[string]string{"Cookie": tc.cookie, "Origin": tc.origin, "Content-Type": "application/x-www-form-urlencoded"} {
			r.Header.Set(name, value)
		}
		before, w := served, httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != tc.want || (served > before) != (tc.want == http.StatusOK) {
			t.Errorf("%s: status %d, want %d, served: %t", tc.name, w.Code, tc.want, served > before)
		}
		for name, value := range headers {
			if w.Header().Get(name) != value {
				t.Errorf("%s: header %s is %q", tc.name, name, w.Header().Get(name))
			}
		}
		if tc.want != http.StatusSeeOther {
			continue
		}
		set, to := w.Header().Get("Set-Cookie"), w.Header().Get("Location")
		if set != cookie+"; Path=/; HttpOnly; SameSite=Strict" || to != "/evil.example.com" {
			t.Errorf("%s: cookie %q, leads to %q", tc.name, set, to)
		}
	}
}

// TestFromAFile: a browser that comes from a file gets its cookie, and is led on by a page of the server: it would not send the cookie
// when it follows a redirection.
func TestFromAFile(t *testing.T) {
	t.Parallel()
	g := newPageGuard(pageHost)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pod/shop/web-0?token="+g.token, nil)
	r.Host = pageHost
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Header().Get("Refresh") != "0; url=/pod/shop/web-0" || !strings.Contains(w.Header().Get("Set-Cookie"), g.session) {
		t.Errorf("status %d, %v", w.Code, w.Header())
	}
	select {
	case <-g.redeemed:
	default:
		t.Error("the token is not redeemed")
	}
}

// pageServerOf is a server of pages for an API server of a test.
func pageServerOf(t *testing.T, handler http.Handler) *pageServer {
	t.Helper()
	c := clientOf(t, handler, "shop")
	return &pageServer{
		options: &uiOptions{status: statusOptions{home: defaultHome, language: ui.English}}, api: c, state: statusSource{api: c}, form: "form-token", changed: make(chan struct{}), shared: map[string]*sharedPage{},
	}
}

// get is the status and the body of a page.
func (s *pageServer) get(t *testing.T, method, target, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, r)
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(text) + w.Header().Get("Location")
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestServedPages: each page has its contents, and an error is a page that names it.
func TestServedPages(t *testing.T) {
	t.Parallel()
	hung := faultOf("HungMount", v1.ImpactNow, v1.HealPerson, "<script>web")
	hung.Status.Evidence = []string{"it does not\u202e answer"}
	list := encoded(t, v1.MountFaultList{Items: []v1.MountFault{*hung, *faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, "api-a")}})
	s := pageServerOf(t, &recordedServer{answers: map[string]string{
		oursPath + "/mountfaults": list, oursPath + "/namespaces/shop/mountfaults": list, oursPath + "/namespaces/shop/mountfaults/x": encoded(t, hung),
		oursPath + "/namespaces/bank/mountfaults": failure(http.StatusForbidden, "Forbidden", `"eve" cannot list resource "mountfaults"`),
		oursPath + "/recoverypolicies":            `{"kind":"RecoveryPolicyList","items":[]}`, oursPath + "/diagnoses": encoded(t, v1.DiagnosisList{Items: []v1.Diagnosis{*waiting("0a")}}),
		oursPath + "/namespaces/shop/diagnoses/web": encoded(t, waiting("0a")),
	}})
	for target, tc := range map[string]struct {
		status int
		has    []string
	}{
		"/":                   {http.StatusOK, []string{"2 faults in all namespaces.", `href="/fault/shop/%3cscript%3eweb-1a2b"`, `href="/diagnosis/shop/web"`, `<script src="/live.js" defer></script>`}},
		"/fault/shop/x":       {http.StatusOK, []string{"1 fault in shop/&lt;script&gt;web.", `it does not\u202e answer`, "volume: broken here", "kubectl kubediag run"}},
		"/pod/shop/api-a":     {http.StatusOK, []string{"1 fault in shop/api-a.", "StaleSubPath"}},
		"/pod/shop/well":      {http.StatusOK, []string{"No fault is known of shop/well.", "run pod/well -n shop"}},
		"/pod/bank/db":        {http.StatusForbidden, []string{"&#34;eve&#34; cannot list resource"}},
		"/diagnosis/shop/web": {http.StatusOK, []string{`action="/approve/shop/web"`, `action="/refuse/shop/web"`, `name="token" value="form-token"`, `name="hash" value="0a"`, "would unmount /m"}},
		"/diagnosis/shop/no":  {http.StatusBadGateway, []string{"kubediag is not installed"}},
		"/style.css":          {http.StatusOK, []string{"--page:"}},
		"/nothing":            {http.StatusNotFound, nil},
	} {
		status, page := s.get(t, http.MethodGet, target, "")
		for _, text := range append(tc.has, "") {
			if status != tc.status || !strings.Contains(page, text) || strings.Contains(page, "<script>") {
				t.Errorf("%s: status %d, want %d, with %q:\n%s", target, status, tc.status, text, page)
			}
		}
	}
}

// TestLastAnswersStay: when the API server is away, the page has the last answers, and says of when they are.
func TestLastAnswersStay(t *testing.T) {
	t.Parallel()
	s := pageServerOf(t, http.NotFoundHandler())
	if status, page := s.get(t, http.MethodGet, "/", ""); status != http.StatusBadGateway || !strings.Contains(page, "kubediag is not installed") {
		t.Errorf("without an answer: status %d:\n%s", status, page)
	}
	s.last = statusOf([]v1.MountFault{*faultOf("HungMount", v1.ImpactNow, v1.HealPerson, "web-a")}, nil, nil)
	s.last.Time = time.Now().Add(-time.Hour)
	if status, page := s.get(t, http.MethodGet, "/", ""); status != http.StatusOK || !strings.Contains(page, "This is how it was 1h0m") || !strings.Contains(page, "HungMount") {
		t.Errorf("with an old answer: status %d:\n%s", status, page)
	}
}

// isPlanned makes a Diagnosis one of mode Plan that has ended with its plan.
func isPlanned(d *v1.Diagnosis) {
	d.Spec.Mode, d.Spec.PodReference = v1.ModePlan, &v1.PodReference{Namespace: "shop", Name: "web"}
	d.Status.Phase, d.Status.Outcome, d.Status.Approval = v1.DiagnosisSucceeded, v1.OutcomePlanned, nil
}

// TestLinesOfTheHashStandAboveTheButtons, unfolded: all other text about a plan is chosen by the writer of the status.
func TestLinesOfTheHashStandAboveTheButtons(t *testing.T) {
	t.Parallel()
	d := waiting(v1.PlanHash(changesOfWaiting))
	s := pageServerOf(t, &recordedServer{answers: map[string]string{
		oursPath + "/diagnoses": encoded(t, &v1.DiagnosisList{Items: []v1.Diagnosis{*d}}), oursPath + "/namespaces/shop/diagnoses/web": encoded(t, d),
	}})
	for _, target := range []string{"/diagnosis/shop/web", "/approve"} {
		_, page := s.get(t, http.MethodGet, target, "")
		above, _, button := strings.Cut(page, `<form method="post" action="/approve/shop/web">`)
		if !button {
			t.Fatalf("%s has no button:\n%s", target, page)
		}
		for _, line := range changesOfWaiting {
			if !strings.Contains(above, html.EscapeString(line)) || strings.Contains(above, "<details") {
				t.Errorf("%s does not show %q above the button:\n%s", target, line, above)
			}
		}
	}
}

// TestButtons: exactly the plan that was shown is approved, or its Diagnosis deleted, and no other.
func TestButtons(t *testing.T) {
	t.Parallel()
	hash := v1.PlanHash(changesOfWaiting)
	for name, tc := range map[string]struct {
		target, body string
		change       func(*v1.Diagnosis)
		want         string // the request that changes something
	}{
		"approve":              {target: "/approve/shop/web", body: "hash=" + hash, want: "POST /apis/diagnosis.kubediag.org/v1/namespaces/shop/recoveryapprovals"},
		"approve another plan": {target: "/approve/shop/web", body: "hash=" + strings.Repeat("0b", 32)},
		"approve without hash": {target: "/approve/shop/web"},
		"approve other changes": {
			target: "/approve/shop/web", body: "hash=" + hash, change: func(d *v1.Diagnosis) { d.Status.Plan.Changes = changesOfWaiting[:1] },
		},
		"approve no changes":   {target: "/approve/shop/web", body: "hash=" + hash, change: func(d *v1.Diagnosis) { d.Status.Plan.Changes = nil }},
		"make a plan":          {target: "/plan/shop/web", want: "POST /apis/diagnosis.kubediag.org/v1/namespaces/shop/diagnoses Plan "},
		"carry out":            {target: "/repair/shop/web", body: "hash=" + hash, change: isPlanned, want: "POST /apis/diagnosis.kubediag.org/v1/namespaces/shop/diagnoses Recover " + hash},
		"carry out another":    {target: "/repair/shop/web", body: "hash=0b", change: isPlanned},
		"carry out what waits": {target: "/repair/shop/web", body: "hash=" + hash},
		"carry out a held plan": {target: "/repair/shop/web", body: "hash=" + hash, change: func(d *v1.Diagnosis) {
			isPlanned(d)
			d.Status.Plan.HeldActions = 1
		}},
		"carry out other changes": {target: "/repair/shop/web", body: "hash=" + hash, change: func(d *v1.Diagnosis) {
			isPlanned(d)
			d.Status.Plan.Changes = changesOfWaiting[:1]
		}},
		"refuse":           {target: "/refuse/shop/web", body: "hash=" + hash, want: "DELETE /apis/diagnosis.kubediag.org/v1/namespaces/shop/diagnoses/web web-uid"},
		"refuse another":   {target: "/refuse/shop/web", body: "hash=0b"},
		"refuse what runs": {target: "/refuse/shop/web", body: "hash=" + hash, change: func(d *v1.Diagnosis) { d.Status.Outcome = "" }},
	} {
		d, done := waiting(hash), ""
		if tc.change != nil {
			tc.change(d)
		}
		s := pageServerOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
				fmt.Fprint(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview","status":{"userInfo":{"username":"anna"}}}`)
				return
			case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/diagnoses"):
				made := &v1.Diagnosis{}
				if err := json.NewDecoder(r.Body).Decode(made); err != nil || made.Spec.PodReference == nil || made.Spec.PodReference.Name != "web" || made.Spec.NodeName != "" {
					t.Errorf("%s: created %+v, error %v", name, made.Spec, err)
				}
				done = fmt.Sprintf("POST %s %s %s", r.URL.Path, made.Spec.Mode, made.Spec.PlanHash)
				made.Name = "web"
				_ = json.NewEncoder(w).Encode(made)
				return
			case r.Method == http.MethodPost:
				a := &v1.RecoveryApproval{}
				if err := json.NewDecoder(r.Body).Decode(a); err != nil || a.Spec.PlanHash != hash || a.Spec.Approver != "anna" || a.Spec.Diagnosis.UID != d.UID {
					t.Errorf("%s: created %+v, error %v", name, a.Spec, err)
				}
				done = "POST " + r.URL.Path
				_ = json.NewEncoder(w).Encode(a)
				return
			case r.Method == http.MethodDelete:
				var o struct{ Preconditions struct{ UID string } }
				_ = json.NewDecoder(r.Body).Decode(&o)
				done = "DELETE " + r.URL.Path + " " + o.Preconditions.UID
			}
			_ = json.NewEncoder(w).Encode(d)
		}))
		status, page := s.get(t, http.MethodPost, tc.target, tc.body)
		want := http.StatusForbidden
		if tc.want != "" {
			want = http.StatusSeeOther
		}
		if status != want || done != tc.want || tc.want != "" && !strings.Contains(page, "/diagnosis/shop/web") {
			t.Errorf("%s: status %d, did %q, want %q:\n%s", name, status, done, tc.want, page)
		}
	}
}

// TestServe: the address that is printed lets a browser in once, its page is served, and changes are reported, until the verb ends.
func TestServe(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := faultOf("HungMount", v1.ImpactNow, v1.HealPerson, "web-a")
		f.ResourceVersion = strconv.FormatInt(asked.Add(1), 10) // each answer is a change
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/namespaces/shop/mountfaults") {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(v1.MountFaultList{Items: []v1.MountFault{*f}})
	}))
	defer api.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	cmd := NewCommand(Name, []string{"ui", "pod/web-a", "-n", "shop", "--lang=zh", "--server=" + api.URL})
	cmd.SetOut(in)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.ExecuteContext(ctx)
		in.Close()
	}()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	address := strings.TrimPrefix(strings.TrimSpace(line), "Open ")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	get := func(client *http.Client, address string) (int, *bufio.Reader) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer.StatusCode, bufio.NewReader(answer.Body)
	}
	status, body := get(browser, address)
	page, err := io.ReadAll(body)
	if err != nil || status != http.StatusOK || !strings.Contains(string(page), "1 fault in shop/web-a.") || !strings.Contains(string(page), `<html lang="zh-CN">`) {
		t.Errorf("status %d, error %v:\n%s", status, err, page)
	}
	if status, _ := get(http.DefaultClient, address); status != http.StatusForbidden {
		t.Errorf("the address counts twice: status %d", status)
	}
	origin, _, _ := strings.Cut(address, "/pod/")
	status, events := get(browser, origin+"/events")
	if status != http.StatusOK {
		t.Errorf("events: status %d", status)
	}
	for version := 0; version == 0; { // the first may be of before the watch has listed the faults
		if line, err = events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if line != "\n" {
			if _, err := fmt.Sscanf(line, "data: %d\n", &version); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the verb ends with %v", err)
	}
}

// TestStartPage: a pod is named with its namespace, as in the text of an alert, or without.
func TestStartPage(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{
		"": "/", "pod/web-0": "/pod/default/web-0", "pod/shop/web-0": "/pod/shop/web-0", "pod/shop/..": "/pod", "pod": "", "pod/": "", "pod//web-0": "", "node/n1": "", "pod/a/b/c": "",
	} {
		got, err := startPage(strings.Fields(argument), "default")
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q leads to %q, error %v, want %q", argument, got, err, want)
		}
	}
}
