// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

func firing(labels map[string]string) *alert {
	all := map[string]string{alertName: "High CPU", "node": "n1", "namespace": "team", "pod": "web", "container": "c"}
	for name, value := range labels {
		if all[name] = value; value == "" {
			delete(all, name)
		}
	}
	return &alert{
		Status: "firing", Labels: all, Annotations: map[string]string{"device": "rbd0"},
		StartsAt: time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC), GeneratorURL: "http://p/graph",
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		regexp v1.PrometheusAlertRegexp
		want   bool
	}{
		"everything":        {v1.PrometheusAlertRegexp{}, true},
		"name":              {v1.PrometheusAlertRegexp{AlertName: "CPU"}, true},
		"anchored name":     {v1.PrometheusAlertRegexp{AlertName: "^CPU"}, false},
		"label":             {v1.PrometheusAlertRegexp{Labels: map[string]string{"node": "^n[0-9]$"}}, true},
		"label that is not": {v1.PrometheusAlertRegexp{Labels: map[string]string{"Node": ""}}, false},
		"annotation":        {v1.PrometheusAlertRegexp{Annotations: map[string]string{"device": "^rbd"}}, true},
		"no annotation":     {v1.PrometheusAlertRegexp{Annotations: map[string]string{"summary": ".*"}}, false},
		"start":             {v1.PrometheusAlertRegexp{StartsAt: "^2026-11-23T06:00:00Z$"}, true},
		"end":               {v1.PrometheusAlertRegexp{EndsAt: "^0001-"}, true},
		"generator":         {v1.PrometheusAlertRegexp{GeneratorURL: "graph$"}, true},
		"one of two fails":  {v1.PrometheusAlertRegexp{AlertName: "CPU", GeneratorURL: "^x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			match, err := compile(&v1.Trigger{Spec: v1.TriggerSpec{SourceTemplate: v1.SourceTemplate{
				PrometheusAlertTemplate: &v1.PrometheusAlertTemplate{Regexp: tc.regexp},
			}}})
			must(t, err)
			if _, ok, err := match(signal{firing(nil), time.Now()}); ok != tc.want || err != nil {
				t.Errorf("matched %t, %v", ok, err)
			}
		})
	}
	if _, err := expressions(v1.PrometheusAlertRegexp{Labels: map[string]string{"a": "("}}); err == nil {
		t.Error("an expression that does not compile is taken")
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	pod := func(container string) *v1.PodReference {
		return &v1.PodReference{Namespace: "team", Name: "web", Container: container}
	}
	named := v1.PrometheusAlertTemplate{
		NodeNameReferenceLabel: "node", PodNamespaceReferenceLabel: "namespace", PodNameReferenceLabel: "pod", ContainerReferenceLabel: "container",
		ParameterInjectionLabels: []string{"severity"}, ParametersFrom: []v1.AlertParameter{{Name: "param.device", Annotation: "device"}},
	}
	values := map[string]string{"severity": "page", "param.device": "rbd0"}
	for name, tc := range map[string]struct {
		template v1.PrometheusAlertTemplate
		labels   map[string]string
		want     trigger.Cause
		reason   string
	}{
		"all named":    {named, map[string]string{"severity": "page"}, trigger.Cause{Node: "n1", Pod: pod("c"), Parameters: values}, ""},
		"no container": {named, map[string]string{"severity": "page", "container": ""}, trigger.Cause{Node: "n1", Pod: pod(""), Parameters: values}, ""},
		"no node":      {named, map[string]string{"severity": "page", "node": ""}, trigger.Cause{Pod: pod("c"), Parameters: values}, ""},
		"no pod":       {named, map[string]string{"severity": "page", "pod": ""}, trigger.Cause{}, v1.ReasonLabelMissing},
		"no namespace": {named, map[string]string{"severity": "page", "namespace": ""}, trigger.Cause{}, v1.ReasonLabelMissing},
		"no parameter": {named, nil, trigger.Cause{}, v1.ReasonLabelMissing},
		"none named":   {v1.PrometheusAlertTemplate{}, nil, trigger.Cause{Parameters: map[string]string{}}, ""},
		"half a pod":   {v1.PrometheusAlertTemplate{PodNameReferenceLabel: "pod"}, nil, trigger.Cause{}, v1.ReasonLabelMissing},
		"no annotation": {
			v1.PrometheusAlertTemplate{ParametersFrom: []v1.AlertParameter{{Name: "p", Annotation: "none"}}}, nil, trigger.Cause{}, v1.ReasonLabelMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := causeOf(&tc.template, signal{firing(tc.labels), time.Now()})
			var r *trigger.Rejection
			if tc.reason != "" {
				if !errors.As(err, &r) || r.Reason != tc.reason {
					t.Errorf("error = %v", err)
				}
				return
			}
			must(t, err)
			got = trigger.Cause{Node: got.Node, Pod: got.Pod, Parameters: got.Parameters}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("cause (-want +got):\n%s", diff)
			}
		})
	}
}

// A label of 10 KiB is cut where people read it, and refused where it names something.
func TestLongLabels(t *testing.T) {
	t.Parallel()
	a := firing(map[string]string{"node": strings.Repeat("x", 10<<10)})
	c, err := causeOf(&v1.PrometheusAlertTemplate{NodeNameReferenceLabel: "node"}, signal{a, time.Now()})
	if err != nil || len(c.Annotations[v1.AnnotationPrometheusAlert]) > 4096 || c.Check() == nil || len(c.Key) > 100 {
		t.Errorf("%v, %d bytes", err, len(c.Annotations[v1.AnnotationPrometheusAlert]))
	}
}
