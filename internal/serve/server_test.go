// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// listen starts a server and returns its address and a function that stops it and waits.
func listen(t *testing.T, s *Server) (string, func() error) {
	t.Helper()
	addr := make(chan net.Addr, 1)
	s.Address, s.Log, s.Listening = "127.0.0.1:0", logr.Discard(), func(a net.Addr) { addr <- a }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	select {
	case a := <-addr:
		return a.String(), func() error {
			cancel()
			return <-ended
		}
	case err := <-ended:
		cancel()
		t.Fatalf("server did not start: %v", err)
		return "", nil
	}
}

// clientFor trusts one certificate and nothing else.
func clientFor(t *testing.T, cert *x509.Certificate) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "n1"}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func post(t *testing.T, c *http.Client, addr string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+addr+"/processor/known", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer caller")
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

func TestServerMakesACertificate(t *testing.T) {
	t.Parallel()
	addr, stop := listen(t, &Server{Handler: newTestHandler(&calls{}, 1, time.Minute)})
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	cert := conn.ConnectionState().PeerCertificates[0]
	_ = conn.Close()
	if code := post(t, clientFor(t, cert), addr); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	if err := stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func TestFingerprintIsThatOfTheCertificate(t *testing.T) {
	t.Parallel()
	cert, fingerprint, err := selfSigned("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(cert.Certificate[0]); fingerprint != hex.EncodeToString(sum[:]) {
		t.Errorf("fingerprint %q", fingerprint)
	}
}

func TestServerReadsItsCertificate(t *testing.T) {
	t.Parallel()
	certFile, keyFile, cert := writeCertificate(t)
	addr, stop := listen(t, &Server{Handler: newTestHandler(&calls{}, 1, time.Minute), CertFile: certFile, KeyFile: keyFile})
	if code := post(t, clientFor(t, cert), addr); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	if err := stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func writeCertificate(t *testing.T) (certFile, keyFile string, cert *x509.Certificate) {
	t.Helper()
	made, _, err := selfSigned("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err = x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalECPrivateKey(made.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyFile: {Type: "EC PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, cert
}

func TestServerSpeaksNothingButTLS(t *testing.T) {
	t.Parallel()
	addr, stop := listen(t, &Server{Handler: newTestHandler(&calls{}, 1, time.Minute)})
	resp, err := http.Post("http://"+addr+"/processor/known", "application/json", strings.NewReader("{}"))
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP got %d", resp.StatusCode)
		}
	}
	_, err = tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11})
	if err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	if err := stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func TestServerDoesNotStartWithoutWhatItNeeds(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for name, tc := range map[string]struct {
		server Server
		want   string
	}{
		"no such certificate": {Server{Address: "127.0.0.1:0", CertFile: "/nonexistent/tls.crt", KeyFile: "/nonexistent/tls.key"}, `reading certificate "/nonexistent/tls.crt"`},
		"address taken":       {Server{Address: taken.Addr().String()}, "listening on"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.server.Handler, tc.server.Log = newTestHandler(&calls{}, 1, time.Minute), logr.Discard()
			err := tc.server.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, http.ErrServerClosed) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestEveryPhaseOfAConnectionHasALimit checks the limits themselves: waiting for one would take as long.
func TestEveryPhaseOfAConnectionHasALimit(t *testing.T) {
	t.Parallel()
	const call = 7 * time.Minute
	s := (&Server{Handler: newTestHandler(&calls{}, 1, call)}).server(&tls.Config{})
	for name, limit := range map[string]time.Duration{
		"header": s.ReadHeaderTimeout, "read": s.ReadTimeout, "write": s.WriteTimeout, "idle": s.IdleTimeout,
	} {
		if limit <= 0 {
			t.Errorf("no limit for %s", name)
		}
	}
	if s.WriteTimeout < call {
		t.Errorf("an answer must be written within %v, but a call may take %v", s.WriteTimeout, call)
	}
	if s.MaxHeaderBytes <= 0 || s.MaxHeaderBytes > 1<<20 {
		t.Errorf("headers of %d bytes", s.MaxHeaderBytes)
	}
}
