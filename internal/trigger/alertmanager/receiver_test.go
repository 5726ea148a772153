// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/bearer"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/trigger"
)

const token = "a-secret-of-the-right-length"

// offers keeps the offered causes, and has no room for a Trigger called full.
type offers struct {
	mu     sync.Mutex
	causes []trigger.Cause
}

func (o *offers) Offer(name string, c trigger.Cause) error {
	if name == "full" {
		return errors.New("queue is full")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.causes = append(o.causes, c)
	return nil
}

func (o *offers) Reject(string, trigger.Kind, *trigger.Rejection) {}

// only takes one token, or fails.
type only struct{ err error }

func (o only) Authenticate(_ context.Context, got string) error {
	if o.err == nil && got != token {
		return bearer.ErrUnauthenticated
	}
	return o.err
}

func alertTrigger(name string) *v1.Trigger {
	t := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
	t.Spec.SourceTemplate.PrometheusAlertTemplate = &v1.PrometheusAlertTemplate{Regexp: v1.PrometheusAlertRegexp{AlertName: "^VolumeBroken$"}}
	return t
}

func newReceiver(t *testing.T, auth bearer.Authenticator, names ...string) (*Receiver, *offers) {
	t.Helper()
	got := &offers{}
	r := &Receiver{Auth: auth, To: got, now: func() time.Time { return time.Date(2026, 11, 23, 6, 5, 0, 0, time.UTC) }}
	for _, name := range names {
		must(t, r.Install(alertTrigger(name)))
	}
	return r, got
}

func TestRequests(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, path, token, body string
		auth                      bearer.Authenticator
		code, offered             int
	}{
		"webhook":               {"POST", "/alertmanager", "Bearer " + token, webhook, only{}, 200, 1},
		"API v1":                {"POST", "/api/v1/alerts", "Bearer " + token, array, only{}, 200, 1},
		"API v2":                {"POST", "/api/v2/alerts", "bearer " + token, array, only{}, 200, 1},
		"resolved":              {"POST", "/alertmanager", "Bearer " + token, strings.ReplaceAll(webhook, `"firing"`, `"resolved"`), only{}, 200, 0},
		"no token":              {"POST", "/alertmanager", "", webhook, only{}, 401, 0},
		"empty token":           {"POST", "/alertmanager", "Bearer ", webhook, only{}, 401, 0},
		"wrong token":           {"POST", "/alertmanager", "Bearer x" + token, webhook, only{}, 401, 0},
		"another scheme":        {"POST", "/alertmanager", "Basic " + token, webhook, only{}, 401, 0},
		"no right":              {"POST", "/alertmanager", "Bearer " + token, webhook, only{bearer.ErrForbidden}, 403, 0},
		"cannot be checked":     {"POST", "/alertmanager", "Bearer " + token, webhook, only{errors.New("down")}, 503, 0},
		"no JSON":               {"POST", "/alertmanager", "Bearer " + token, "hello", only{}, 400, 0},
		"1 MiB and a byte":      {"POST", "/alertmanager", "Bearer " + token, strings.Repeat(" ", maxBodyBytes+1), only{}, 413, 0},
		"too many alerts":       {"POST", "/alertmanager", "Bearer " + token, "[" + strings.Repeat("{},", maxAlerts) + "{}]", only{}, 413, 0},
		"GET":                   {"GET", "/api/v1/alerts", "Bearer " + token, "", only{}, 405, 0},
		"defect 12: pprof":      {"GET", "/debug/pprof/", "Bearer " + token, "", only{}, 404, 0},
		"defect 12: download":   {"GET", "/download?file=/etc/shadow", "Bearer " + token, "", only{}, 404, 0},
		"defect 12: processors": {"POST", "/processor/commandExecutor", "Bearer " + token, "{}", only{}, 404, 0},
		"anything else":         {"POST", "/", "Bearer " + token, array, only{}, 404, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, got := newReceiver(t, tc.auth, "t")
			request := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, strings.NewReader(tc.body))
			if tc.token != "" {
				request.Header.Set("Authorization", tc.token)
			}
			w := httptest.NewRecorder()
			r.server().Handler.ServeHTTP(w, request)
			if w.Code != tc.code || len(got.causes) != tc.offered {
				t.Errorf("status %d, %d causes, %s", w.Code, len(got.causes), w.Body)
			}
		})
	}
}

// Defect 27: what cannot be taken is not answered as if it were. Alertmanager sends it again, to those that took it, too.
func TestQueueIsFull(t *testing.T) {
	t.Parallel()
	r, got := newReceiver(t, only{}, "full", "t")
	request := httptest.NewRequestWithContext(t.Context(), "POST", "/alertmanager", strings.NewReader(webhook))
	request.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	r.server().Handler.ServeHTTP(w, request)
	if w.Code != http.StatusServiceUnavailable || len(got.causes) != 1 {
		t.Errorf("status %d, %d causes", w.Code, len(got.causes))
	}
}

// Defect 12: without an address there is no listener at all.
func TestOffWithoutAddress(t *testing.T) {
	t.Parallel()
	r, _ := newReceiver(t, nil, "t")
	if err := r.Start(t.Context()); err != nil {
		t.Error(err)
	}
	if !r.NeedLeaderElection() {
		t.Error("every manager listens")
	}
	if err := r.Install(&v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "t"}}); err != nil || !r.rules.Empty() {
		t.Errorf("another source: %v", err)
	}
	bad := alertTrigger("t")
	bad.Spec.SourceTemplate.PrometheusAlertTemplate.Regexp.AlertName = "a("
	if err := r.Install(bad); err == nil {
		t.Errorf("an expression that does not compile: %v", err)
	}
}

// listen serves until the test ends.
func listen(t *testing.T, r *Receiver) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// Defect 19: a body of 100 MiB is not read, neither of a sender with a token nor of one without.
func TestLargeBody(t *testing.T) {
	t.Parallel()
	r, _ := newReceiver(t, only{}, "t")
	address := listen(t, r)
	for auth, code := range map[string]int{"Bearer " + token: 413, "Bearer wrong": 401} {
		read := &counter{}
		read.left.Store(100 << 20)
		request, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/alertmanager", read)
		must(t, err)
		request.Header.Set("Authorization", auth)
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != code {
				t.Errorf("%s: status %d", auth, answer.StatusCode)
			}
		}
		if sent := 100<<20 - read.left.Load(); sent > 20<<20 { // what the buffers of two sockets may hold
			t.Errorf("%s: %d bytes were taken", auth, sent)
		}
	}
}

type counter struct{ left atomic.Int64 }

func (c *counter) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), int(left))
	for i := range n {
		p[i] = ' '
	}
	c.left.Store(left - int64(n))
	return n, nil
}

// Slow senders are cut off: one that does not end its header, and one that does not send its body.
func TestSlowSenders(t *testing.T) {
	t.Parallel()
	r, _ := newReceiver(t, only{}, "t")
	r.slow = 200 * time.Millisecond
	address := listen(t, r)
	for name, text := range map[string]string{
		"header": "POST /alertmanager HTTP/1.1\r\nHost: x\r\n",
		"body": "POST /alertmanager HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token +
			"\r\nContent-Length: 100\r\n\r\n[",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", address)
			must(t, err)
			defer conn.Close()
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			must(t, conn.SetReadDeadline(began.Add(10*time.Second)))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("still there after %s", time.Since(began))
			}
		})
	}
}

// HTTPS with a certificate from files.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	r, got := newReceiver(t, only{}, "t")
	var trust *tls.Config
	r.CertFile, r.KeyFile, trust = certificate(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}
	defer client.CloseIdleConnections()
	if code, err := post(t.Context(), client, "https://"+listen(t, r), token); code != 200 || len(got.causes) != 1 {
		t.Errorf("status %d, %v, %d causes", code, err, len(got.causes))
	}
	r.CertFile = filepath.Join(t.TempDir(), "none")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	if err := r.serve(t.Context(), listener); err == nil {
		t.Error("no certificate, and no error")
	}
}

// certificate writes one into files, and returns its name with those who trust it.
func certificate(t *testing.T) (certFile, keyFile string, trust *tls.Config) {
	t.Helper()
	certificate, key, err := bearer.SelfSigned(ServiceName, ServiceName)
	must(t, err)
	certFile, keyFile = filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(certFile, certificate, 0o600))
	must(t, os.WriteFile(keyFile, key, 0o600))
	trust = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: ServiceName, MinVersion: tls.VersionTLS12}
	trust.RootCAs.AppendCertsFromPEM(certificate)
	return certFile, keyFile, trust
}

var must = kerneltest.Must
