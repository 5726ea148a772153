// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/freeport"
)

// TestProtectedMetrics has a real API server decide who reads metrics, with the roles of config/components/protected-metrics.
func TestProtectedMetrics(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.createRoles(t, "protected-metrics", "reviewer", "reader")
	w.bind(t, w.config.Impersonate.UserName, "kubediag-metrics-reviewer", true)
	reader, stranger, ofVault := w.serviceAccountWith(t, "kubediag-metrics-reader"), w.serviceAccount(t, false), w.serviceAccountWith(t, "kubediag-metrics-reader", "vault")
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	if err != nil {
		t.Fatal(err)
	}
	w.options.MetricsBindAddress, w.options.Metrics.On = free[0].String(), true
	w.run(t)

	get := func(method, path, token string) (int, string, error) {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}}
		defer c.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.options.MetricsBindAddress+path, nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := c.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body), err
	}
	apitest.Eventually(t, func() error {
		code, body, err := get(http.MethodGet, "/metrics", reader)
		if code != http.StatusOK || !strings.Contains(body, "\nkubediag_retention_diagnoses{") {
			return errors.Join(err, fmt.Errorf("a reader: status %d: %.300s", code, body))
		}
		return nil
	})
	for name, c := range map[string]struct {
		method, path, token string
		code                int
	}{
		"no token":              {"GET", "/metrics", "", 401},
		"a forged token":        {"GET", "/metrics", reader + "x", 401},
		"a token for another":   {"GET", "/metrics", ofVault, 401},
		"without the right":     {"GET", "/metrics", stranger, 403},
		"another path":          {"GET", "/debug/pprof/", reader, 404},
		"another method":        {"POST", "/metrics", reader, 405},
		"the reader once again": {"GET", "/metrics", reader, 200},
	} {
		if code, body, err := get(c.method, c.path, c.token); code != c.code || code != 200 && strings.Contains(body, "kubediag_") {
			t.Errorf("%s: status %d, %v, want %d\n%.300s", name, code, err, c.code, body)
		}
	}
	if answer, err := http.Get("http://" + w.options.MetricsBindAddress + "/metrics"); err == nil {
		if answer.Body.Close(); answer.StatusCode == http.StatusOK {
			t.Error("metrics are served in the clear")
		}
	}
}
