// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// fields of API server 1.23, by the struct of apiextensions.k8s.io/v1 that has them. kubectl refuses to send a server what it
// does not know, and leaves out the kind; a rule, which 1.23 was the first to know, had no messageExpression, reason,
// fieldPath or optionalOldSelf before 1.27.
var (
	specFields    = []string{"conversion", "group", "names", "preserveUnknownFields", "scope", "versions"}
	versionFields = []string{
		"additionalPrinterColumns", "deprecated", "deprecationWarning", "name", "schema", "served", "storage", "subresources",
	}
	ruleFields   = []string{"message", "rule"}
	schemaFields = []string{
		"$ref", "$schema", "additionalItems", "additionalProperties", "allOf", "anyOf", "default", "definitions", "dependencies",
		"description", "enum", "example", "exclusiveMaximum", "exclusiveMinimum", "externalDocs", "format", "id", "items", "maxItems",
		"maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "nullable",
		"oneOf", "pattern", "patternProperties", "properties", "required", "title", "type", "uniqueItems",
		"x-kubernetes-embedded-resource", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
		"x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
	}
)

// The CustomResourceDefinitions are taken by kubectl's strict validation against every server from 1.23 on.
func TestCRDsHaveNoFieldNewerThan123(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../config/crd/" + Group + "_*.yaml")
	if err != nil || len(files) != 7 {
		t.Fatalf("found %q, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var crd map[string]any
			if err := yaml.Unmarshal(text, &crd); err != nil {
				t.Fatal(err)
			}
			spec := crd["spec"].(map[string]any)
			known(t, "spec", spec, specFields)
			if keeps, said := spec["preserveUnknownFields"].(bool); keeps || !said {
				t.Error("spec.preserveUnknownFields is not false: KubeDiag's definition has it true, and says so until it is taken back")
			}
			for _, version := range spec["versions"].([]any) {
				v := version.(map[string]any)
				known(t, "spec.versions", v, versionFields)
				schema := v["schema"].(map[string]any)["openAPIV3Schema"]
				kind := spec["names"].(map[string]any)["kind"].(string)
				if rules := walk(t, "schema", schema.(map[string]any)); rules == 0 && !slices.Contains([]string{"OperationSet", "MountFault"}, kind) {
					t.Error("no rule was found: the walk misses them")
				}
			}
		})
	}
}

// walk checks a schema and those in it, and counts the rules.
func walk(t *testing.T, at string, schema map[string]any) (rules int) {
	t.Helper()
	known(t, at, schema, schemaFields)
	list, _ := schema["x-kubernetes-validations"].([]any)
	for _, rule := range list {
		known(t, at+".x-kubernetes-validations", rule.(map[string]any), ruleFields)
	}
	rules = len(list)
	for _, field := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[field].(map[string]any); ok {
			rules += walk(t, at+"."+field, inner)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, inner := range properties {
		rules += walk(t, at+"."+name, inner.(map[string]any))
	}
	return rules
}

func known(t *testing.T, at string, object map[string]any, fields []string) {
	t.Helper()
	for name := range object {
		if !slices.Contains(fields, name) {
			t.Errorf("%s.%s: API server 1.23 knows no such field", at, name)
		}
	}
}
