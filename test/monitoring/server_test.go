// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package monitoring

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/program"
)

// patience bounds each wait.
const patience = 45 * time.Second

// server is a program that was started on a loopback address.
type server struct{ address string }

// start runs a program of Debian until the test has ended.
func start(t *testing.T, address, name string, args ...string) server {
	t.Helper()
	path, err := debian.LookPath(name)
	must(t, err)
	program.Start(t, exec.Command(path, args...))
	return server{address}
}

// get reads a path of the server, as JSON unless to is a *string.
func (s server) get(t *testing.T, path string, to any) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.address+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	if plain, ok := to.(*string); ok {
		*plain = string(text)
		return nil
	}
	return json.Unmarshal(text, to)
}

// sample is one of the answer to a query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// query runs an instant query.
func (s server) query(t *testing.T, expr string) ([]sample, error) {
	t.Helper()
	var answer struct {
		Data struct{ Result []sample }
	}
	err := s.get(t, "/api/v1/query?query="+url.QueryEscape(expr), &answer)
	return answer.Data.Result, err
}

// alerts lists the alerts that Prometheus has firing.
func (s server) alerts(t *testing.T) (map[string]map[string]string, error) {
	t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	err := s.get(t, "/api/v1/alerts", &answer)
	firing := map[string]map[string]string{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = a.Annotations
		}
	}
	return firing, err
}

// await asks until there is no error.
func await(t *testing.T, what string, ask func() error) {
	t.Helper()
	err := ask()
	for deadline := time.Now().Add(patience); err != nil; err = ask() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s: %v", what, err)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// write writes a file of a directory and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// quickRules are the rules that ship, with alerts that wait for a second.
func quickRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../config/alerts/kubediag.yaml")
	must(t, err)
	return regexp.MustCompile(`(?m)^(\s+for:) \S+$`).ReplaceAllString(string(text), "$1 1s")
}

// startPrometheus scrapes the targets each second.
func startPrometheus(t *testing.T, address, alertmanager string, targets ...string) server {
	t.Helper()
	dir := t.TempDir()
	config := write(t, dir, "prometheus.yml", `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [`+write(t, dir, "rules.yml", quickRules(t))+`]
alerting: {alertmanagers: [{static_configs: [{targets: ["`+alertmanager+`"]}]}]}
scrape_configs: [{job_name: kubediag, static_configs: [{targets: ["`+strings.Join(targets, `", "`)+`"]}]}]
`)
	return start(t, address, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
}

// startAlertmanager sends alerts to the manager, again each second.
func startAlertmanager(t *testing.T, address, manager, secretFile, authority string) server {
	t.Helper()
	dir := t.TempDir()
	config := write(t, dir, "alertmanager.yml", `
route: {receiver: kubediag, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 1s}
receivers:
- name: kubediag
  webhook_configs:
  - url: https://`+manager+`/alertmanager
    http_config:
      authorization: {credentials_file: `+secretFile+`}
      tls_config: {ca_file: `+authority+`, server_name: kubediag-alerts.default.svc}
`)
	return start(t, address, "prometheus-alertmanager", "--config.file="+config, "--storage.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--cluster.listen-address=")
}

var must = kerneltest.Must
