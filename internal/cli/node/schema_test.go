// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"kubediag.org/kubediag/internal/fault"
)

// schemaFile is the schema of what scan and show write as JSON, for those who read it.
const schemaFile = "../../../docs/spec/scan.schema.json"

// enums are the values of strings that have few.
func enums() map[reflect.Type][]string {
	words := func(list any) (all []string) {
		v := reflect.ValueOf(list)
		for i := range v.Len() {
			all = append(all, v.Index(i).String())
		}
		return all
	}
	return map[reflect.Type][]string{
		reflect.TypeFor[fault.Code]():           codeNames(),
		reflect.TypeFor[fault.Impact]():         words(fault.Impacts()),
		reflect.TypeFor[fault.Heal]():           words(fault.Heals()),
		reflect.TypeFor[fault.Effect]():         words([]fault.Effect{fault.EffectNone, fault.EffectRepair, fault.EffectLoss}),
		reflect.TypeFor[fault.ContainerState](): words([]fault.ContainerState{fault.ContainerRuns, fault.ContainerDown}),
		reflect.TypeFor[fault.ProcessState]():   words([]fault.ProcessState{fault.ProcessStopped, fault.ProcessBlocked, fault.ProcessEnded}),
		reflect.TypeFor[fault.ActionKind]():     words([]fault.ActionKind{fault.Replace, fault.Unmount, fault.RemoveDirectory}),
	}
}

// schemaOf is the schema of a type. A field that may be left out is not required.
func schemaOf(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[time.Time]() {
		return map[string]any{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		if values := enums()[t]; values != nil {
			return map[string]any{"type": "string", "enum": values}
		}
		return map[string]any{"type": "string"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Int, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{} // kubeletRenews is true, false or "unknown"
	}
	properties, required := map[string]any{}, []string{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() {
			continue
		}
		properties[name] = schemaOf(f.Type)
		if options == "" {
			required = append(required, name)
		}
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// TestSchema keeps the file that is handed out the same as the types, and what is written the same as the file.
func TestSchema(t *testing.T) {
	t.Parallel()
	whole := schemaOf(reflect.TypeFor[scanReport]())
	whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	whole["title"] = "kubediag scan -o json, schemaVersion 1"
	text, err := json.MarshalIndent(whole, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		if err := os.WriteFile(schemaFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(file), string(text)); diff != "" {
		t.Errorf("%s (-file +types):\n%s", schemaFile, diff)
	}
	var schema spec.Schema
	if err := json.Unmarshal(file, &schema); err != nil {
		t.Fatal(err)
	}
	validator := validate.NewSchemaValidator(&schema, nil, "", strfmt.Default)
	for name, r := range reports {
		var written bytes.Buffer
		if err := writeJSON(&written, r); err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(written.Bytes(), &value); err != nil {
			t.Fatal(err)
		}
		for _, err := range validator.Validate(value).Errors {
			t.Errorf("%s: %v", name, err)
		}
		delete(value.(map[string]any), "verdict")
		if validator.Validate(value).IsValid() {
			t.Errorf("%s: without its verdict it is valid", name)
		}
	}
}

// TestDocumentsNameEveryField has no field be read that the page does not describe.
func TestDocumentsNameEveryField(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(filepath.Dir(schemaFile), "node.md"))
	if err != nil {
		t.Fatal(err)
	}
	var names func(schema map[string]any)
	names = func(schema map[string]any) {
		if items, ok := schema["items"].(map[string]any); ok {
			names(items)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, inner := range properties {
			if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), `"`+name+`"`) {
				t.Errorf("the page does not name the field %s", name)
			}
			names(inner.(map[string]any))
		}
	}
	names(schemaOf(reflect.TypeFor[scanReport]()))
	names(schemaOf(reflect.TypeFor[change]()))
}
