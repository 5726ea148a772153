// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger/alertmanager"
	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/freeport"
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

const (
	secret = "a-secret-of-the-right-length"
	alert  = "ContainerCannotStart"
)

// world is a node, the manager and the agent on it, and those who watch them.
type world struct {
	*fakenode.Node
	agent                    *fakenode.Agent
	prometheus, alertmanager server
	manager                  server // its metrics
}

func newWorld(t *testing.T) *world {
	t.Helper()
	must(t, debian.Install(t.Context(), "prometheus", "promtool", "prometheus-alertmanager"))
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 4)
	must(t, err)
	var at [4]string
	for i := range at {
		at[i] = free[i].String()
	}
	w := &world{Node: fakenode.New(t), manager: server{at[0]}}
	w.Build(t, "manager", "")
	w.Build(t, "agent", "")
	secretFile := write(t, t.TempDir(), "secret", secret)
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: alertmanager.ServiceName}}
	if err := w.Create(t.Context(), empty); err != nil { // as config/components/alert-receiver does
		t.Fatal(err)
	}
	w.LaunchWith(t, "manager", "--metrics-bind-address="+at[0], "--alert-bind-address="+at[1], "--alert-secret-file="+secretFile)
	w.agent = w.LaunchAgent(t, "Observe")
	w.alertmanager = startAlertmanager(t, at[2], at[1], secretFile, w.authority(t))
	w.prometheus = startPrometheus(t, at[3], at[2], at[0], w.agent.Address())
	return w
}

// authority waits for the certificate that the manager makes, and writes it to a file.
func (w *world) authority(t *testing.T) string {
	t.Helper()
	kept := &corev1.Secret{}
	await(t, "the certificate of the receiver", func() error {
		err := w.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: alertmanager.ServiceName}, kept)
		if err == nil && len(kept.Data[corev1.TLSCertKey]) == 0 {
			err = errors.New("the Secret is empty")
		}
		return err
	})
	return write(t, t.TempDir(), "ca.crt", string(kept.Data[corev1.TLSCertKey]))
}

// faults waits until Prometheus has a number of stale subPaths.
func (w *world) faults(t *testing.T, want string) {
	t.Helper()
	await(t, "the metric to be "+want, func() error {
		found, err := w.prometheus.query(t, `sum(kubediag_faults{code="StaleSubPath"})`)
		if err == nil && (len(found) != 1 || found[0].Value[1] != want) {
			err = fmt.Errorf("%v", found)
		}
		return err
	})
}

// trigger has a node diagnosed that an alert names.
func (w *world) trigger(t *testing.T) *v1.Trigger {
	t.Helper()
	tr := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "monitored"}}
	tr.Spec = v1.TriggerSpec{OperationSet: "auto", SourceTemplate: v1.SourceTemplate{PrometheusAlertTemplate: &v1.PrometheusAlertTemplate{
		Regexp: v1.PrometheusAlertRegexp{AlertName: "^" + alert + "$"}, NodeNameReferenceLabel: "node",
	}}}
	must(t, w.Create(t.Context(), tr))
	t.Cleanup(func() { _ = w.Delete(t.Context(), tr) })
	return tr
}

// ended waits for the one Diagnosis of the Trigger, and returns it.
func (w *world) ended(t *testing.T, tr *v1.Trigger) *v1.Diagnosis {
	t.Helper()
	var all v1.DiagnosisList
	await(t, "the Diagnosis", func() error {
		err := w.List(t.Context(), &all, client.InNamespace("default"), client.MatchingLabels{v1.LabelTrigger: tr.Name})
		if err == nil && (len(all.Items) != 1 || all.Items[0].Status.CompletionTime == nil) {
			err = errors.Join(fmt.Errorf("%d Diagnoses", len(all.Items)), w.Get(t.Context(), client.ObjectKeyFromObject(tr), tr))
			err = fmt.Errorf("%w, status %+v", err, tr.Status)
		}
		return err
	})
	return &all.Items[0]
}

// A fault on the node is seen by the agent, scraped, alerted on and sent to the manager, whose Trigger has it diagnosed and
// repaired. Then the alert is resolved, which makes no second Diagnosis. While the fault is there, every panel has its data.
func TestFaultToRepair(t *testing.T) {
	w := newWorld(t)
	w.AwaitSet(t, "auto")
	w.Break(t, 1)
	w.faults(t, "1")
	await(t, "the alert", func() error {
		firing, err := w.prometheus.alerts(t)
		if err == nil && !strings.HasPrefix(firing[alert]["summary"], "Node "+fakenode.NodeName+" has 1 mount with the fault StaleSubPath") {
			err = fmt.Errorf("%v", firing)
		}
		return err
	})
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, w.prometheus) })
	t.Run("conventions", func(t *testing.T) { w.lint(t) })

	tr := w.trigger(t)
	d := w.ended(t, tr)
	if d.Status.Outcome != v1.OutcomeHealed || d.Spec.NodeName != fakenode.NodeName || !strings.Contains(d.Annotations[v1.AnnotationPrometheusAlert], alert) {
		t.Errorf("Diagnosis = %+v, %+v", d.ObjectMeta, d.Status)
	}
	w.faults(t, "0")
	await(t, "the alert to be resolved", func() error {
		var left []struct{ Labels map[string]string }
		err := w.alertmanager.get(t, "/api/v2/alerts?active=true&filter=alertname%3D"+alert, &left)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v", left)
		}
		return err
	})
	if again := w.ended(t, tr); again.UID != d.UID || tr.Status.Fired > 1 {
		t.Errorf("a second Diagnosis %s, status %+v", again.Name, tr.Status)
	}
}

// lint reads the metrics of both programs as Prometheus does.
func (w *world) lint(t *testing.T) {
	for name, of := range map[string]server{"manager": w.manager, "agent": {w.agent.Address()}} {
		var text string
		must(t, of.get(t, "/metrics", &text))
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil || !strings.Contains(text, "\nkubediag_") {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "kubediag_") {
				t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
			}
		}
	}
}

// quiet are the panels that may have no data while there is one fault and nothing was done yet.
var quiet = map[string]bool{
	"Repairs": true, "Finished Diagnoses by outcome": true, "Refused Diagnoses": true, "Duration of operations, p99": true,
	"Requests to the receiver of alerts": true, "Pods with faults": true, "Diagnoses by phase": true, "Time to detect a fault": true,
}

// metricName finds the metrics that a query reads.
var metricName = regexp.MustCompile(`\b(kubediag_\w+|ALERTS)\b`)

// checkDashboard runs the queries of all panels.
func checkDashboard(t *testing.T, prometheus server) {
	text, err := os.ReadFile("../../config/dashboards/kubediag.json")
	must(t, err)
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	queries, seen := 0, map[string]bool{}
	for _, p := range board.Panels {
		if p.Type == "row" {
			continue
		}
		if seen[p.Title] = true; len(p.Targets) == 0 {
			t.Errorf("%q has no query", p.Title)
		}
		for _, target := range p.Targets {
			queries++
			if metrics, chosen := len(metricName.FindAllString(target.Expr, -1)), strings.Count(target.Expr, `{cluster=~"$cluster"`); metrics != chosen {
				t.Errorf("%s reads %d metrics, %d of them of the chosen clusters", target.Expr, metrics, chosen)
			}
			await(t, "data of "+p.Title, func() error {
				found, err := prometheus.query(t, strings.NewReplacer("$__rate_interval", "30s", "$cluster", ".*").Replace(target.Expr))
				if err == nil && len(found) == 0 && !quiet[p.Title] {
					err = fmt.Errorf("%s has no data", target.Expr)
				}
				return err
			})
		}
	}
	for title := range quiet {
		if !seen[title] {
			t.Errorf("there is no panel %q", title)
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
}

// Promtool takes the rules, and they raise the alerts that testdata/rules.yaml expects of its series.
func TestRules(t *testing.T) {
	must(t, debian.Install(t.Context(), "promtool"))
	promtool, err := debian.LookPath("promtool")
	must(t, err)
	for _, args := range [][]string{{"check", "rules", "../../config/alerts/kubediag.yaml"}, {"test", "rules", "testdata/rules.yaml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}
