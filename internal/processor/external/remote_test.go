// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/processor"
)

// call posts to address with a client that trusts the authorities in caFile.
func call(t *testing.T, address, caFile string, timeout time.Duration) (processor.Result, error) {
	t.Helper()
	client, err := NewClient(caFile)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return (&remote{client: client, name: "test", url: u}).Run(ctx, processor.Request{
		Node: "n", Pod: processor.Pod{Namespace: "a", Name: "b"},
		Values: map[string]string{"param.x": "1", "node": "forged"},
	})
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestRequestIsTheContractOfKubeDiag(t *testing.T) {
	t.Parallel()
	var got map[string]string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/processor/x" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("request is %s %s, %v", r.Method, r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		answer(200, `{"a.b":"c"}`)(w, r)
	})
	result, err := call(t, s.URL+"/processor/x", "", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a.b": "c"}, result.Values); diff != "" {
		t.Error(diff)
	}
	want := map[string]string{"param.x": "1", "node": "n", "pod.namespace": "a", "pod.name": "b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerDecides(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler       http.HandlerFunc
		notApplicable string
		err           string
	}{
		"empty object":   {handler: answer(200, "{}")},
		"not found":      {handler: answer(404, "no such thing\n"), notApplicable: "status 404 Not Found: no such thing"},
		"conflict":       {handler: answer(409, ""), notApplicable: "status 409 Conflict"},
		"unprocessable":  {handler: answer(422, "\xff"), notApplicable: "status 422 Unprocessable Entity: \uFFFD"},
		"server error":   {handler: answer(500, "boom"), err: "status is not 200: status 500 Internal Server Error: boom"},
		"created":        {handler: answer(201, "{}"), err: "status is not 200"},
		"html":           {handler: answer(200, "<html>"), err: `body "<html>" is no JSON object of strings`},
		"list":           {handler: answer(200, `["a"]`), err: `body "[\"a\"]" is no JSON object of strings`},
		"null":           {handler: answer(200, `null`), err: `body "null" is no JSON object of strings`},
		"null inside":    {handler: answer(200, `{"a":null}`), err: `is no JSON object of strings: "a" is null`},
		"numbers":        {handler: answer(200, `{"a":1}`), err: "is no JSON object of strings"},
		"two objects":    {handler: answer(200, `{}{}`), err: "is no JSON object of strings"},
		"nothing":        {handler: answer(200, ``), err: `body "" is no JSON object of strings`},
		"ten megabytes":  {handler: answer(200, `{"a":"`+strings.Repeat("x", 10<<20)+`"}`), err: "body is larger than 4194304 bytes"},
		"redirect":       {handler: http.RedirectHandler("http://127.0.0.1:1/secret", http.StatusFound).ServeHTTP, err: `a redirect to "http://127.0.0.1:1/secret" is not followed`},
		"endless header": {handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, err: "post"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := call(t, serve(t, tc.handler).URL, "", time.Minute)
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error is %.400v, want %q in it", err, tc.err)
			case result.NotApplicable != tc.notApplicable:
				t.Errorf("NotApplicable is %q, want %q", result.NotApplicable, tc.notApplicable)
			}
		})
	}
}

func TestNoServerHoldsACall(t *testing.T) {
	t.Parallel()
	// A server hears that its client has gone only after it has read the request.
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	stream := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	for name, handler := range map[string]http.HandlerFunc{"hangs": hang, "streams": stream, "stops in the body": drip} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, handler)
			done := make(chan error, 1)
			go func() {
				_, err := call(t, s.URL, "", 300*time.Millisecond)
				done <- err
			}()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), s.URL) {
					t.Errorf("error is %v, want %q in it", err, s.URL)
				}
			case <-time.After(30 * time.Second):
				t.Error("the call still waits")
			}
		})
	}
}

func TestServerThatRefuses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, err = call(t, "http://user:secret@"+address+"/x", "", 10*time.Second)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), address) {
		t.Errorf("error is %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestCertificatesAreVerified(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(answer(200, "{}"))
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	if _, err := call(t, s.URL, "", 10*time.Second); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody's: error is %v", err)
	}
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, s.URL, file, 10*time.Second); err != nil {
		t.Errorf("a certificate that is trusted: %v", err)
	}
	other := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	if _, err := call(t, other, file, 10*time.Second); err == nil || !strings.Contains(err.Error(), "localhost") {
		t.Errorf("a certificate of another name: error is %v", err)
	}
}

func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "")
	client, err := NewClient("")
	if err != nil {
		t.Fatal(err)
	}
	if client.Transport.(*http.Transport).Proxy != nil {
		t.Error("the client asks the environment for a proxy")
	}
	// The first request through it gives it a configuration of its own.
	if c := http.DefaultTransport.(*http.Transport).TLSClientConfig; c != nil && c.RootCAs != nil {
		t.Error("the default transport was changed")
	}
}

func TestBadCAFileIsNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if _, err := NewClient(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(file); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("a file without certificates: %v", err)
	}
}

// Whatever a server does, no connection is left open when its client is done with it.
func TestConnectionsAreNotLeaked(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
				return
			}
		}
	}))
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; state == http.StateClosed {
			delete(open, c)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	for range 20 {
		if _, err := call(t, s.URL, "", 30*time.Second); err == nil {
			t.Fatal("no error")
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		mu.Lock()
		n := len(open)
		mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open", n)
		}
		runtime.Gosched()
	}
}

// FuzzDecode: whatever a server answers becomes strings or an error, and a short one.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{`{}`, `{"a":"b"}`, `{"a":null}`, `[]`, `<html>`, `{"a":"b"`, "", "null"} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		result, err := decodeAnswer(strings.NewReader(body))
		if (err == nil) != (result.Values != nil) || err != nil && len(err.Error()) > 2048 {
			t.Errorf("%q: %v, %v", body, result, err)
		}
	})
}
