// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate checks a TriggerSpec by itself, without the cron schedule, whose parser is no part of
// apimachinery. The errors name the fields, from spec on, and the values.
func (s *TriggerSpec) Validate() field.ErrorList {
	at := field.NewPath("spec")
	errs := validateOrder(at, s.OperationSet, s.NodeName)
	if s.SourceTemplate.CronTemplate != nil && s.NodeName == "" && s.NodeSelector == nil {
		errs = append(errs, field.Required(at.Child("nodeName"), "nodeName or nodeSelector must be set with cronTemplate"))
	}
	if modes := []DiagnosisMode{"", ModeRecover, ModePlan, ModeApprove}; !slices.Contains(modes, s.Mode) {
		errs = append(errs, field.NotSupported(at.Child("mode"), s.Mode, modes[1:]))
	}
	if s.NodeName != "" && s.NodeSelector != nil {
		errs = append(errs, field.Invalid(at.Child("nodeName"), s.NodeName, "must not be set together with nodeSelector"))
	}
	errs = append(errs, validateSelector(at.Child("nodeSelector"), s.NodeSelector)...)
	errs = append(errs, validateRanges(at, []optionalRange{
		{"repeatIntervalSeconds", s.RepeatIntervalSeconds, 1, MaxRepeatIntervalSeconds},
		{"diagnosesPerMinute", s.DiagnosesPerMinute, 1, MaxDiagnosesPerMinute},
		{"successfulHistoryLimit", s.SuccessfulHistoryLimit, 0, MaxHistoryLimit},
		{"failedHistoryLimit", s.FailedHistoryLimit, 0, MaxHistoryLimit},
	})...)
	errs = append(errs, validateParameters(at.Child("parameters"), s.Parameters)...)
	if alert := s.SourceTemplate.PrometheusAlertTemplate; alert != nil {
		errs = append(errs, alert.validate(at.Child("sourceTemplate", "prometheusAlertTemplate"), s.Parameters)...)
	}
	if fault := s.SourceTemplate.MountFaultTemplate; fault != nil {
		at := at.Child("sourceTemplate", "mountFaultTemplate")
		errs = append(errs, validateRanges(at, []optionalRange{{"lastingSeconds", fault.LastingSeconds, 0, MaxLastingSeconds}})...)
		errs = append(errs, validateSelector(at.Child("namespaceSelector"), fault.NamespaceSelector)...)
		errs = append(errs, validateSelector(at.Child("podSelector"), fault.PodSelector)...)
		errs = append(errs, validateSelector(at.Child("nodeSelector"), fault.NodeSelector)...)
	}
	return append(errs, s.SourceTemplate.validate(at.Child("sourceTemplate"))...)
}

// validate checks where parameters come from: each from one place, and none from two.
func (p *PrometheusAlertTemplate) validate(at *field.Path, set map[string]string) field.ErrorList {
	var errs field.ErrorList
	given := map[string]bool{}
	once := func(at *field.Path, name string) {
		if _, fixed := set[name]; fixed || given[name] {
			errs = append(errs, field.Duplicate(at, name))
		}
		given[name] = true
	}
	for i, label := range p.ParameterInjectionLabels {
		once(at.Child("parameterInjectionLabels").Index(i), label)
	}
	for i, from := range p.ParametersFrom {
		at := at.Child("parametersFrom").Index(i)
		once(at.Child("name"), from.Name)
		if (from.Label == "") == (from.Annotation == "") {
			errs = append(errs, field.Invalid(at, from.Name, "exactly one of label and annotation must be set"))
		}
	}
	if len(given)+len(set) > MaxParameters {
		errs = append(errs, field.TooMany(at.Child("parametersFrom"), len(given)+len(set), MaxParameters))
	}
	return errs
}

// Lasting is the least age of a fault.
func (m *MountFaultTemplate) Lasting() time.Duration {
	return seconds(m.LastingSeconds, 0)
}

func (t *SourceTemplate) validate(at *field.Path) field.ErrorList {
	sources := setFields([]namedField{
		{"prometheusAlertTemplate", t.PrometheusAlertTemplate != nil},
		{"kubernetesEventTemplate", t.KubernetesEventTemplate != nil},
		{"commonEventTemplate", t.CommonEventTemplate != nil},
		{"cronTemplate", t.CronTemplate != nil},
		{"mountFaultTemplate", t.MountFaultTemplate != nil},
	})
	if len(sources) != 1 {
		return field.ErrorList{field.Invalid(at, strings.Join(sources, ","), "exactly one of prometheusAlertTemplate, "+
			"kubernetesEventTemplate, commonEventTemplate, cronTemplate and mountFaultTemplate must be set")}
	}
	var errs field.ErrorList
	expressions := t.expressions()
	if len(expressions) > MaxExpressions {
		return field.ErrorList{field.TooMany(at, len(expressions), MaxExpressions)}
	}
	for _, name := range slices.Sorted(maps.Keys(expressions)) {
		if len(expressions[name]) > MaxExpressionBytes {
			errs = append(errs, field.TooLong(at.Child(name), "", MaxExpressionBytes))
		} else if _, err := regexp.Compile(expressions[name]); err != nil {
			errs = append(errs, field.Invalid(at.Child(name), expressions[name], err.Error()))
		}
	}
	return errs
}

// expressions are the regular expressions by the fields that hold them, relative to the template.
func (t *SourceTemplate) expressions() map[string]string {
	switch {
	case t.PrometheusAlertTemplate != nil:
		r := t.PrometheusAlertTemplate.Regexp
		const at = "prometheusAlertTemplate.regexp."
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

// RepeatInterval is the time in which one cause makes no second Diagnosis.
func (s *TriggerSpec) RepeatInterval() time.Duration {
	return seconds(s.RepeatIntervalSeconds, DefaultRepeatIntervalSeconds)
}

// PerMinute bounds the Diagnoses that are made in a minute.
func (s *TriggerSpec) PerMinute() int {
	return int(orDefault(s.DiagnosesPerMinute, DefaultDiagnosesPerMinute))
}

// HistoryLimit bounds the kept Diagnoses that ended in this phase, for each node.
func (s *TriggerSpec) HistoryLimit(phase DiagnosisPhase) int {
	limit := s.FailedHistoryLimit
	if phase == DiagnosisSucceeded {
		limit = s.SuccessfulHistoryLimit
	}
	return int(orDefault(limit, DefaultHistoryLimit))
}
