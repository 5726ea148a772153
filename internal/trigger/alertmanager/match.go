// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

// alertName is the label that every alert of Prometheus has.
const alertName = "alertname"

// signal is an alert that fires.
type signal struct {
	alert *alert
	now   time.Time
}

// expression is a field of an alert and the expression that it must match.
type expression struct {
	of func(a *alert) (value string, found bool)
	re *regexp.Regexp
}

// compile makes a rule of the template of a Trigger. Nil: it has none of this source.
func compile(of *v1.Trigger) (trigger.Match[signal], error) {
	t := of.Spec.SourceTemplate.PrometheusAlertTemplate.DeepCopy()
	if t == nil {
		return nil, nil
	}
	all, err := expressions(t.Regexp)
	if err != nil {
		return nil, err
	}
	return func(s signal) (trigger.Cause, bool, error) {
		for _, x := range all {
			if value, found := x.of(s.alert); !found || !x.re.MatchString(value) {
				return trigger.Cause{}, false, nil
			}
		}
		c, err := causeOf(t, s)
		return c, true, err
	}, nil
}

func expressions(r v1.PrometheusAlertRegexp) ([]expression, error) {
	var all []expression
	var failed error
	add := func(pattern string, of func(a *alert) (string, bool)) {
		re, err := regexp.Compile(pattern)
		if err != nil && failed == nil {
			failed = fmt.Errorf("compiling expression: %w", err)
		}
		all = append(all, expression{of, re})
	}
	add(r.AlertName, func(a *alert) (string, bool) { return a.Labels[alertName], true })
	add(r.StartsAt, func(a *alert) (string, bool) { return a.StartsAt.Format(time.RFC3339), true })
	add(r.EndsAt, func(a *alert) (string, bool) { return a.EndsAt.Format(time.RFC3339), true })
	add(r.GeneratorURL, func(a *alert) (string, bool) { return a.GeneratorURL, true })
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		add(r.Labels[name], func(a *alert) (string, bool) { value, found := a.Labels[name]; return value, found })
	}
	for _, name := range slices.Sorted(maps.Keys(r.Annotations)) {
		add(r.Annotations[name], func(a *alert) (string, bool) { value, found := a.Annotations[name]; return value, found })
	}
	return all, failed
}

// causeOf takes from an alert the labels that the Trigger names. A pod or a parameter that is named and missing rejects the alert:
// without it the Diagnosis would reach further than the Trigger says.
func causeOf(t *v1.PrometheusAlertTemplate, s signal) (trigger.Cause, error) {
	a := s.alert
	read := map[string]string{"generatorURL": a.GeneratorURL} // the part of the alert that people read
	if !a.StartsAt.IsZero() {
		read["startsAt"] = a.StartsAt.UTC().Format(time.RFC3339)
	}
	for name, value := range a.Labels {
		read["labels."+name] = value
	}
	for name, value := range a.Annotations {
		read["annotations."+name] = value
	}
	key := sha256.New() // an alert has the name of its labels, as in Alertmanager
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		value := a.Labels[name]
		fmt.Fprintf(key, "%d %s %d %s ", len(name), name, len(value), value)
	}
	cause := trigger.Cause{
		Kind: trigger.KindAlert, Key: hex.EncodeToString(key.Sum(nil)), Time: s.now,
		Annotations: map[string]string{v1.AnnotationPrometheusAlert: trigger.Excerpt(read)},
	}
	if t.NodeNameReferenceLabel != "" {
		cause.Node = a.Labels[t.NodeNameReferenceLabel]
	}
	if t.PodNameReferenceLabel != "" || t.PodNamespaceReferenceLabel != "" {
		namespace, name := a.Labels[t.PodNamespaceReferenceLabel], a.Labels[t.PodNameReferenceLabel]
		if namespace == "" || name == "" {
			return cause, trigger.Reject(v1.ReasonLabelMissing, "alert %q has no value for the labels %q and %q, which name the pod",
				a.Labels[alertName], t.PodNamespaceReferenceLabel, t.PodNameReferenceLabel)
		}
		cause.Pod = &v1.PodReference{Namespace: namespace, Name: name}
		if t.ContainerReferenceLabel != "" {
			cause.Pod.Container = a.Labels[t.ContainerReferenceLabel]
		}
	}
	cause.Parameters = map[string]string{}
	var parameters []v1.AlertParameter
	for _, name := range t.ParameterInjectionLabels {
		parameters = append(parameters, v1.AlertParameter{Name: name, Label: name})
	}
	for _, p := range append(parameters, t.ParametersFrom...) {
		from, name, values := "label", p.Label, a.Labels
		if p.Annotation != "" {
			from, name, values = "annotation", p.Annotation, a.Annotations
		}
		value, found := values[name]
		if !found {
			return cause, trigger.Reject(v1.ReasonLabelMissing, "alert %q has no %s %q for the parameter %q",
				a.Labels[alertName], from, name, p.Name)
		}
		cause.Parameters[p.Name] = value
	}
	return cause, nil
}
