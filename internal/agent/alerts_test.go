// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"regexp"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

func TestAlertsAreOnMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../config/alerts/kubediag.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	o, _, counter := newTestObserver(t)
	l := &lookout{observer: o, mode: sentinel.Observe, log: logr.Discard()}
	if err := l.register(counter.registry, func() sentinel.Sight { return sentinel.Sight{} }); err != nil {
		t.Fatal(err)
	}
	l.metrics.repairs.WithLabelValues("a", "b", outcomeFailed)
	families, err := counter.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
	}
	count := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			for _, name := range regexp.MustCompile(`kubediag_[a-z_]+`).FindAllString(r.Expr, -1) {
				if count++; !known[name] {
					t.Errorf("alert %s is on %s, which the agent does not have", r.Alert, name)
				}
			}
			for _, code := range regexp.MustCompile(`[A-Z][A-Za-z]{6,}`).FindAllString(r.Expr, -1) {
				if _, ok := fault.Lookup(fault.Code(code)); !ok {
					t.Errorf("alert %s speaks of %s, which is no fault", r.Alert, code)
				}
			}
		}
	}
	if count < 4 {
		t.Errorf("%d names of metrics in the rules", count)
	}
}
