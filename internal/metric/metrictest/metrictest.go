// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrictest compares the metrics that a program exposes with those that it declares. It is for tests alone.
package metrictest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"kubediag.org/kubediag/internal/metric"
)

// prefix begins the names of our metrics. The others are those of libraries.
const prefix = "kubediag_"

// Problems lists the mistakes in the metrics that a program exposes: a convention of Prometheus is broken, or a metric is
// not as declared.
func Problems(exposed []*dto.MetricFamily, declared []metric.Declaration) (problems []string) {
	var ours []*dto.MetricFamily
	for _, f := range exposed {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		ours = append(ours, f)
		i := slices.IndexFunc(declared, func(d metric.Declaration) bool { return d.Name == f.GetName() })
		if i < 0 {
			problems = append(problems, f.GetName()+" is not declared")
			continue
		}
		problems = append(problems, compare(f, declared[i])...)
	}
	found, err := promlint.NewWithMetricFamilies(ours).Lint()
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, p := range found {
		problems = append(problems, p.Metric+": "+p.Text)
	}
	return problems
}

// compare lists the differences between a metric and its declaration.
func compare(f *dto.MetricFamily, d metric.Declaration) (problems []string) {
	if kind := strings.ToLower(f.GetType().String()); kind != string(d.Kind) {
		problems = append(problems, fmt.Sprintf("%s is a %s, declared as a %s", d.Name, kind, d.Kind))
	}
	if f.GetHelp() != d.Help {
		problems = append(problems, fmt.Sprintf("%s has the help %q", d.Name, f.GetHelp()))
	}
	var want []string
	for _, l := range d.Labels {
		want = append(want, l.Name)
	}
	slices.Sort(want)
	for _, m := range f.GetMetric() {
		var got []string
		for _, l := range m.GetLabel() {
			got = append(got, l.GetName())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			problems = append(problems, fmt.Sprintf("%s has the labels %q, declared are %q", d.Name, got, want))
			break
		}
	}
	return problems
}
