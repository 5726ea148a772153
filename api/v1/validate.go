// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of the text that Message makes.
const (
	maxMessageErrors = 10
	maxErrorBytes    = 512
)

// Message tells errors in the message of a condition: the first ten, each cut to 512 bytes, and how many more there are.
func Message(errs field.ErrorList) string {
	var texts []string
	for _, err := range errs[:min(len(errs), maxMessageErrors)] {
		text := err.Error()
		if len(text) > maxErrorBytes {
			text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "..."
		}
		texts = append(texts, text)
	}
	if more := len(errs) - maxMessageErrors; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Call normalises the processor and checks the rest of the spec. The errors name the fields, from spec on, and the values.
func (s *OperationSpec) Call() (Call, field.ErrorList) {
	call, errs := s.Processor.Call(field.NewPath("spec", "processor"))
	if s.Storage != nil && s.Storage.HostPath != nil {
		errs = append(errs, validateHostPath(field.NewPath("spec", "storage", "hostPath", "path"), s.Storage.HostPath.Path)...)
	}
	return call, errs
}

func validateHostPath(at *field.Path, dir string) field.ErrorList {
	switch {
	case dir == "":
		return field.ErrorList{field.Required(at, "must not be empty")}
	case strings.ContainsRune(dir, 0) || slices.Contains(strings.Split(dir, "/"), ".."):
		return field.ErrorList{field.Invalid(at, dir, "must have no element .. and no zero byte")}
	case path.Clean(dir) == "/":
		return field.ErrorList{field.Invalid(at, dir, "must not be the root directory")}
	}
	return nil
}

// Validate checks what a DiagnosisSpec can say about itself. The errors name the fields, from spec on, and the values.
func (s *DiagnosisSpec) Validate() field.ErrorList {
	at := field.NewPath("spec")
	errs := append(validateOrder(at, s.Set(), s.NodeName), s.validateMode(at)...)
	if s.PodReference != nil {
		errs = append(errs, s.PodReference.validate(at.Child("podReference"))...)
	}
	if s.NodeName == "" && s.PodReference == nil {
		errs = append(errs, field.Required(at.Child("nodeName"), "nodeName or podReference must be set"))
	}
	if s.ActiveDeadlineSeconds != nil {
		errs = append(errs, validateRange(at.Child("activeDeadlineSeconds"), *s.ActiveDeadlineSeconds, 1, MaxActiveDeadlineSeconds)...)
	}
	return append(errs, validateParameters(at.Child("parameters"), s.Parameters)...)
}

// planHash is the form of spec.planHash.
var planHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *DiagnosisSpec) validateMode(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if modes := []DiagnosisMode{"", ModeRecover, ModePlan}; !slices.Contains(modes, s.Mode) {
		errs = append(errs, field.NotSupported(at.Child("mode"), s.Mode, modes[1:]))
	}
	switch {
	case s.PlanHash == "":
	case !planHash.MatchString(s.PlanHash):
		errs = append(errs, field.Invalid(at.Child("planHash"), s.PlanHash, "must be a SHA-256 of 64 hexadecimal digits, in lower case"))
	case s.Mode == ModePlan:
		errs = append(errs, field.Forbidden(at.Child("planHash"), "planHash cannot be set with mode Plan"))
	}
	return errs
}

// validateOrder checks what a Trigger hands on to its Diagnoses: what to run and, where that is known, on which node.
func validateOrder(at *field.Path, operationSet, nodeName string) field.ErrorList {
	errs := validateName(at.Child("operationSet"), operationSet, validation.IsDNS1123Subdomain)
	if nodeName != "" {
		errs = append(errs, validateName(at.Child("nodeName"), nodeName, validation.IsDNS1123Subdomain)...)
	}
	return errs
}

func (r *PodReference) validate(at *field.Path) field.ErrorList {
	errs := validateName(at.Child("namespace"), r.Namespace, validation.IsDNS1123Label)
	errs = append(errs, validateName(at.Child("name"), r.Name, validation.IsDNS1123Subdomain)...)
	if r.Container != "" {
		errs = append(errs, validateName(at.Child("container"), r.Container, validation.IsDNS1123Label)...)
	}
	return errs
}

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

func validateParameters(at *field.Path, parameters map[string]string) field.ErrorList {
	if len(parameters) > MaxParameters {
		return field.ErrorList{field.TooMany(at, len(parameters), MaxParameters)}
	}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if len(parameters[key]) > MaxValueBytes {
			errs = append(errs, field.TooLong(at.Key(key), "", MaxValueBytes))
		}
	}
	return errs
}

func validateName(at *field.Path, name string, check func(string) []string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "must not be empty")}
	}
	var errs field.ErrorList
	for _, wrong := range check(name) {
		errs = append(errs, field.Invalid(at, name, wrong))
	}
	return errs
}

func validateRange(at *field.Path, n, least, most int32) field.ErrorList {
	if n < least || n > most {
		return field.ErrorList{field.Invalid(at, n, fmt.Sprintf("must be between %d and %d", least, most))}
	}
	return nil
}
