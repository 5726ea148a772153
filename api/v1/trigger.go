// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate checks what a TriggerSpec can say about itself, but for the cron schedule, whose parser is no part of
// apimachinery. The errors name the fields, from spec on, and the values.
func (s *TriggerSpec) Validate() field.ErrorList {
	at := field.NewPath("spec")
	errs := validateOrder(at, s.OperationSet, s.NodeName)
	if s.SourceTemplate.CronTemplate != nil && s.NodeName == "" {
		errs = append(errs, field.Required(at.Child("nodeName"), "must be set with cronTemplate"))
	}
	errs = append(errs, validateParameters(at.Child("parameters"), s.Parameters)...)
	return append(errs, s.SourceTemplate.validate(at.Child("sourceTemplate"))...)
}

func (t *SourceTemplate) validate(at *field.Path) field.ErrorList {
	if sources := t.sources(); len(sources) != 1 {
		return field.ErrorList{field.Invalid(at, strings.Join(sources, ","), "exactly one of prometheusAlertTemplate, "+
			"kubernetesEventTemplate, commonEventTemplate, cronTemplate and mountFaultTemplate must be set")}
	}
	var errs field.ErrorList
	expressions := t.expressions()
	for _, name := range slices.Sorted(maps.Keys(expressions)) {
		if _, err := regexp.Compile(expressions[name]); err != nil {
			errs = append(errs, field.Invalid(at.Child(name), expressions[name], err.Error()))
		}
	}
	return errs
}

func (t *SourceTemplate) sources() []string {
	var sources []string
	for _, s := range []struct {
		name string
		set  bool
	}{
		{"prometheusAlertTemplate", t.PrometheusAlertTemplate != nil},
		{"kubernetesEventTemplate", t.KubernetesEventTemplate != nil},
		{"commonEventTemplate", t.CommonEventTemplate != nil},
		{"cronTemplate", t.CronTemplate != nil},
		{"mountFaultTemplate", t.MountFaultTemplate != nil},
	} {
		if s.set {
			sources = append(sources, s.name)
		}
	}
	return sources
}

// expressions are the regular expressions by the fields that hold them, relative to the template.
func (t *SourceTemplate) expressions() map[string]string {
	switch {
	case t.PrometheusAlertTemplate != nil:
		return t.PrometheusAlertTemplate.Regexp.expressions("prometheusAlertTemplate.regexp.")
	case t.KubernetesEventTemplate != nil:
		r := t.KubernetesEventTemplate.Regexp
		const at = "kubernetesEventTemplate.regexp."
		return map[string]string{
			at + "name": r.Name, at + "namespace": r.Namespace, at + "reason": r.Reason, at + "message": r.Message,
			at + "source.component": r.Source.Component, at + "source.host": r.Source.Host,
		}
	case t.CommonEventTemplate != nil:
		r := t.CommonEventTemplate.Regexp
		const at = "commonEventTemplate.regexp."
		return map[string]string{
			at + "source": r.Source, at + "severity": r.Severity, at + "class": r.Class,
			at + "component": r.Component, at + "group": r.Group,
		}
	}
	return nil
}

func (r *PrometheusAlertRegexp) expressions(at string) map[string]string {
	all := map[string]string{
		at + "alertName": r.AlertName, at + "startsAt": r.StartsAt, at + "endsAt": r.EndsAt, at + "generatorURL": r.GeneratorURL,
	}
	for name, expression := range r.Labels {
		all[at+"labels["+name+"]"] = expression
	}
	for name, expression := range r.Annotations {
		all[at+"annotations["+name+"]"] = expression
	}
	return all
}
