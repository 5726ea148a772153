// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package metric declares metrics: a program makes them from their declarations, and docs/spec/metrics.md is written from the
// same. Names, units and suffixes follow the conventions of Prometheus. It counts nothing itself.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the type of a metric, as Prometheus calls it.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Label of a metric. The number of its values is bounded.
type Label struct {
	Name string
	// Values says which values there are, as Markdown. Empty: the meaning of the metric does.
	Values string
}

// Declaration is one metric.
type Declaration struct {
	Name   string
	Kind   Kind
	Labels []Label
	// Help is the text in Prometheus. The page begins with it.
	Help string
	// More is Markdown that only the page has.
	More string
	// Buckets of a histogram.
	Buckets []float64
}

func (d Declaration) names() []string {
	names := make([]string, 0, len(d.Labels))
	for _, l := range d.Labels {
		names = append(names, l.Name)
	}
	return names
}

// Counter makes a counter without labels.
func (d Declaration) Counter() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: d.Name, Help: d.Help})
}

// CounterVec makes a counter with the labels.
func (d Declaration) CounterVec() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.names())
}

// Gauge makes a gauge without labels.
func (d Declaration) Gauge() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: d.Name, Help: d.Help})
}

// GaugeVec makes a gauge with the labels.
func (d Declaration) GaugeVec() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.names())
}

// GaugeFunc makes a gauge that is read when the metrics are, with fixed values for the labels in their order.
func (d Declaration) GaugeFunc(read func() float64, values ...string) prometheus.GaugeFunc {
	labels := prometheus.Labels{}
	for i, name := range d.names() {
		labels[name] = values[i]
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: d.Name, Help: d.Help, ConstLabels: labels}, read)
}

// Histogram makes a histogram without labels.
func (d Declaration) Histogram() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.Buckets})
}

// HistogramVec makes a histogram with the labels.
func (d Declaration) HistogramVec() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.Buckets}, d.names())
}

// Desc describes samples that a collector makes itself.
func (d Declaration) Desc() *prometheus.Desc {
	return prometheus.NewDesc(d.Name, d.Help, d.names(), nil)
}
