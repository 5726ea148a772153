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
	"sync/atomic"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/freeport"
)

// TestTwoManagers: one of two managers leads, and the other does when that one is gone.
func TestTwoManagers(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.options.AgentCheckInterval = time.Minute // nobody plays the agent here
	first, stop := w.run(t)
	<-first.Elected()
	leader := w.leader(t, "")
	second, _ := w.run(t)
	if !second.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the second manager does not start")
	}
	d := w.diagnose(t, v1.DiagnosisSpec{NodeName: w.node(t)})
	w.Until(t, d, func() bool { return d.HasPlace() })
	select {
	case <-second.Elected():
		t.Error("there are two leaders")
	default:
	}
	if got := w.leader(t, ""); got != leader {
		t.Errorf("holder = %q, want %q", got, leader)
	}
	if got := w.writes("/" + w.ns + "/diagnoses/"); len(got) != 2 {
		t.Errorf("two managers wrote %q", got)
	}
	stop()
	<-second.Elected()
	d = w.diagnose(t, v1.DiagnosisSpec{NodeName: w.node(t)})
	w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] != "" })
}

// A manager that comes before the CustomResourceDefinitions is alive and not ready, gets ready when they come, and can
// be stopped before that.
func TestBeforeCRDs(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	var installed atomic.Bool
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return apitest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/apis/"+v1.Group+"/") && !installed.Load() {
				r.URL.Path = "/apis/none/v1/none" // answered 404, as before they are there
			}
			return next.RoundTrip(r)
		})
	})
	health := func(path string) error {
		_, err := get(w.options.HealthProbeBindAddress + path)
		return err
	}
	for _, come := range []bool{false, true} {
		t.Run(fmt.Sprintf("they come: %t", come), func(t *testing.T) {
			installed.Store(false)
			free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 2)
			must(t, err)
			w.options.HealthProbeBindAddress, w.options.MetricsBindAddress = free[0].String(), free[1].String()
			w.run(t)
			apitest.Eventually(t, func() error { return health("/healthz") })
			if err := health("/readyz"); err == nil {
				t.Error("a manager without caches is ready")
			}
			if !come {
				return
			}
			installed.Store(true)
			apitest.Eventually(t, func() error { return health("/readyz") })
			d := w.diagnose(t, v1.DiagnosisSpec{NodeName: w.node(t)})
			w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] != "" })
			apitest.Eventually(t, func() error {
				metrics, err := get(w.options.MetricsBindAddress + "/metrics")
				for _, want := range []string{"kubediag_diagnosis_bindings_total ", `kubediag_retention_diagnoses{phase="Pending"} `} {
					if !strings.Contains(metrics, "\n"+want) {
						err = errors.Join(err, fmt.Errorf("no metric %q", want))
					}
				}
				return err
			})
		})
	}
}

func get(address string) (string, error) {
	answer, err := http.Get("http://" + address)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", errors.New(answer.Status)
	}
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// TestProtectedMetrics has a real API server decide who reads metrics, with the roles of config/components/protected-metrics.
func TestProtectedMetrics(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.createRoles(t, "protected-metrics", "reviewer", "reader")
	w.bind(t, w.config.Impersonate.UserName, "kubediag-metrics-reviewer", true)
	reader, stranger, ofVault := w.serviceAccountWith(t, "kubediag-metrics-reader"), w.serviceAccount(t, false), w.serviceAccountWith(t, "kubediag-metrics-reader", "vault")
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	must(t, err)
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
