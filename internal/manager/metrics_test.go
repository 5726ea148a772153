// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/metric/metrictest"
)

// The metrics that are registered are declared, and keep the conventions of Prometheus.
func TestMetrics(t *testing.T) {
	t.Parallel()
	exposed, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range metrictest.Problems(exposed, Metrics()) {
		t.Error(problem)
	}
}

// The alerts of the manager are on metrics that it has. A count whose increase is an alert is there from the start.
func TestAlerts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../config/alerts/kubediag.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	exposed, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, g := range file.Groups {
		if g.Name != "kubediag-manager" {
			continue
		}
		for _, r := range g.Rules {
			rules++
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity or a text", r.Alert)
			}
			for _, name := range regexp.MustCompile(`kubediag_[a-z_]+`).FindAllString(r.Expr, -1) {
				if !slices.ContainsFunc(Metrics(), func(d metric.Declaration) bool { return d.Name == name }) {
					t.Errorf("%s is on %s, which the manager does not have", r.Alert, name)
				}
				there := slices.ContainsFunc(exposed, func(f *dto.MetricFamily) bool { return f.GetName() == name })
				if strings.Contains(r.Expr, "increase(") && !there {
					t.Errorf("%s does not see the first increase of %s", r.Alert, name)
				}
			}
		}
	}
	if rules < 2 {
		t.Errorf("%d rules", rules)
	}
}
