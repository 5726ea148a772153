// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package schematest keeps the JSON Schemas of the verbs of both programs the same as the types that they write.
package schematest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"kubediag.org/kubediag/internal/render"
)

// Dir has the schemas, seen from a package of verbs.
const Dir = "../../../docs/spec"

// TypeSchema is the schema of a type, with the values of strings that have few. A field that may be left out is not required.
func TypeSchema(t reflect.Type, enums map[reflect.Type][]string) map[string]any {
	if t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[metav1.Time]() {
		return map[string]any{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return TypeSchema(t.Elem(), enums)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		if values := enums[t]; values != nil {
			return map[string]any{"type": "string", "enum": values}
		}
		return map[string]any{"type": "string"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": TypeSchema(t.Elem(), enums)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": TypeSchema(t.Elem(), enums)}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{} // kubeletRenews is true, false or "unknown"
	}
	properties, required := map[string]any{}, []string{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && (f.Anonymous || options == "inline") {
			part := TypeSchema(f.Type, enums)
			maps.Copy(properties, part["properties"].(map[string]any))
			required = append(required, part["required"].([]string)...)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		properties[name] = TypeSchema(f.Type, enums)
		if options == "" {
			required = append(required, name)
		}
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// Check keeps the file of a verb the same as its schema, and the reports that it writes the same as the file. Without the
// field key, no report is valid. With KUBEDIAG_GOLDEN it writes the file.
func Check(t *testing.T, command string, whole map[string]any, key string, written map[string]any) {
	t.Helper()
	whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	if whole["title"] == nil {
		whole["title"] = command + " -o json, schemaVersion 1"
	}
	text, err := json.MarshalIndent(whole, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	name := filepath.Join(Dir, command[strings.LastIndex(command, " ")+1:]+".schema.json")
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(file), string(text)); diff != "" {
		t.Errorf("%s is old: write it with KUBEDIAG_GOLDEN=1 go test ./internal/cli/... (-file +types):\n%s", name, diff)
	}
	var schema spec.Schema
	if err := json.Unmarshal(file, &schema); err != nil {
		t.Fatal(err)
	}
	validator := validate.NewSchemaValidator(&schema, nil, "", strfmt.Default)
	for name, r := range written {
		var text bytes.Buffer
		if err := render.WriteJSON(&text, r); err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(text.Bytes(), &value); err != nil {
			t.Fatal(err)
		}
		for _, err := range validator.Validate(value).Errors {
			t.Errorf("%s: %v", name, err)
		}
		delete(value.(map[string]any), key)
		if validator.Validate(value).IsValid() {
			t.Errorf("%s: without its %s it is valid", name, key)
		}
	}
}
