// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package metrictest

import (
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"
)

// Alert is a rule of a file of Prometheus.
type Alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// Alerts reads the alerts of a group.
func Alerts(t testing.TB, file, group string) (all []Alert) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []Alert
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		if g.Name == group {
			all = append(all, g.Rules...)
		}
	}
	return all
}

var metricName = regexp.MustCompile(`kubediag_[a-z_]+`)

// Metrics are the names of our metrics in the expression.
func (a Alert) Metrics() []string { return metricName.FindAllString(a.Expr, -1) }
