// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of the text that Message makes.
const (
	maxMessageErrors = 10
	maxErrorBytes    = 512
)

// Message returns errors as the message of a condition: the first ten, each cut to 512 bytes, and the number of the others.
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
		at, dir := field.NewPath("spec", "storage", "hostPath", "path"), s.Storage.HostPath.Path
		switch {
		case dir == "":
			errs = append(errs, field.Required(at, "must not be empty"))
		case strings.ContainsRune(dir, 0) || slices.Contains(strings.Split(dir, "/"), ".."):
			errs = append(errs, field.Invalid(at, dir, "must have no element .. and no zero byte"))
		case path.Clean(dir) == "/":
			errs = append(errs, field.Invalid(at, dir, "must not be the root directory"))
		}
	}
	return call, errs
}

// Validate checks a DiagnosisSpec by itself. The errors name the fields, from spec on, and the values.
func (s *DiagnosisSpec) Validate() field.ErrorList {
	at := field.NewPath("spec")
	errs := validateOrder(at, s.Set(), s.NodeName)
	if modes := []DiagnosisMode{"", ModeRecover, ModePlan, ModeApprove, ModeRecord}; !slices.Contains(modes, s.Mode) {
		errs = append(errs, field.NotSupported(at.Child("mode"), s.Mode, modes[1:]))
	}
	if places := []ArtifactPlace{"", ArtifactsOnNode, ArtifactsInStatus}; !slices.Contains(places, s.Artifacts) {
		errs = append(errs, field.NotSupported(at.Child("artifacts"), s.Artifacts, places[1:]))
	}
	switch {
	case s.PlanHash == "":
	case !planHash.MatchString(s.PlanHash):
		errs = append(errs, field.Invalid(at.Child("planHash"), s.PlanHash, "must be a SHA-256 of 64 hexadecimal digits, in lower case"))
	case s.Mode == ModePlan:
		errs = append(errs, field.Forbidden(at.Child("planHash"), "planHash cannot be set with mode Plan"))
	}
	if s.ApprovalTimeoutSeconds != nil && s.Mode != ModeApprove {
		errs = append(errs, field.Forbidden(at.Child("approvalTimeoutSeconds"), "approvalTimeoutSeconds takes mode Approve"))
	}
	errs = append(errs, validateRanges(at, []optionalRange{{"approvalTimeoutSeconds", s.ApprovalTimeoutSeconds, 1, MaxApprovalTimeoutSeconds}})...)
	if pod := s.PodReference; pod != nil {
		at := at.Child("podReference")
		errs = append(errs, validateName(at.Child("namespace"), pod.Namespace, validation.IsDNS1123Label)...)
		errs = append(errs, validateName(at.Child("name"), pod.Name, validation.IsDNS1123Subdomain)...)
		if pod.Container != "" {
			errs = append(errs, validateName(at.Child("container"), pod.Container, validation.IsDNS1123Label)...)
		}
	}
	if s.NodeName == "" && s.PodReference == nil {
		errs = append(errs, field.Required(at.Child("nodeName"), "nodeName or podReference must be set"))
	}
	errs = append(errs, validateRanges(at, []optionalRange{{"activeDeadlineSeconds", s.ActiveDeadlineSeconds, 1, MaxActiveDeadlineSeconds}})...)
	return append(errs, validateParameters(at.Child("parameters"), s.Parameters)...)
}

// planHash is the form of spec.planHash.
var planHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// validateOrder checks the order that a Trigger hands on to its Diagnoses: the OperationSet and, if it is known, the node.
func validateOrder(at *field.Path, operationSet, nodeName string) field.ErrorList {
	errs := validateName(at.Child("operationSet"), operationSet, validation.IsDNS1123Subdomain)
	if nodeName != "" {
		errs = append(errs, validateName(at.Child("nodeName"), nodeName, validation.IsDNS1123Subdomain)...)
	}
	return errs
}

func validateParameters(at *field.Path, parameters map[string]string) field.ErrorList {
	if len(parameters) > MaxParameters {
		return field.ErrorList{field.TooMany(at, len(parameters), MaxParameters)}
	}
	characters := 0
	for key, value := range parameters {
		characters += utf8.RuneCountInString(key) + utf8.RuneCountInString(value)
	}
	if characters > MaxParameterCharacters {
		return field.ErrorList{field.Invalid(at, fmt.Sprintf("%d characters", characters),
			fmt.Sprintf("must not have more than %d characters in all", MaxParameterCharacters))}
	}
	return nil
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

func validateSelector(at *field.Path, s *metav1.LabelSelector) field.ErrorList {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return field.ErrorList{field.Invalid(at, s, err.Error())}
	}
	return nil
}

// namedField is one of several fields of which one is to be set.
type namedField struct {
	name string
	set  bool
}

// setFields are the names of those that are set.
func setFields(all []namedField) (names []string) {
	for _, f := range all {
		if f.set {
			names = append(names, f.name)
		}
	}
	return names
}

func orDefault[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}

func seconds(n *int32, otherwise int32) time.Duration {
	return time.Duration(orDefault(n, otherwise)) * time.Second
}
