// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

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
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/render"
)

// schemaDir has the schemas of what verbs write as JSON, for those who read it.
const schemaDir = "../../../docs/spec"

// enumValues are the values of strings that have few.
func enumValues() map[reflect.Type][]string {
	words := func(list any) (all []string) {
		v := reflect.ValueOf(list)
		for i := range v.Len() {
			all = append(all, v.Index(i).String())
		}
		return all
	}
	return map[reflect.Type][]string{
		reflect.TypeFor[fault.Code]():           verb.Codes(),
		reflect.TypeFor[fault.Impact]():         words(fault.Impacts()),
		reflect.TypeFor[fault.Heal]():           words(fault.Heals()),
		reflect.TypeFor[fault.Effect]():         words([]fault.Effect{fault.EffectNone, fault.EffectRepair, fault.EffectLoss}),
		reflect.TypeFor[fault.ContainerState](): words([]fault.ContainerState{fault.ContainerRuns, fault.ContainerDown}),
		reflect.TypeFor[fault.ProcessState]():   words([]fault.ProcessState{fault.ProcessStopped, fault.ProcessBlocked, fault.ProcessEnded}),
		reflect.TypeFor[fault.Reason]():         words(fault.Reasons()),
		reflect.TypeFor[fault.ActionKind]():     words([]fault.ActionKind{fault.Replace, fault.Unmount, fault.RemoveDirectory}),
		reflect.TypeFor[repairProgress]():       words([]repairProgress{progressNotPlanned, progressPlanned, progressRefused, progressFailed, progressRepaired, progressGone, progressHealed, progressNotJudged}),
		reflect.TypeFor[v1.ActionPhase]():       words([]v1.ActionPhase{v1.ActionPlanned, v1.ActionDone, v1.ActionFailed}),
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
		if values := enumValues()[t]; values != nil {
			return map[string]any{"type": "string", "enum": values}
		}
		return map[string]any{"type": "string"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{} // kubeletRenews is true, false or "unknown"
	}
	properties, required := map[string]any{}, []string{}
	for f := range t.Fields() {
		if f.Anonymous {
			embedded := schemaOf(f.Type)
			maps.Copy(properties, embedded["properties"].(map[string]any))
			required = append(required, embedded["required"].([]string)...)
			continue
		}
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

// TestSchemas keeps the files that are handed out the same as the types, and what is written the same as the files.
func TestSchemas(t *testing.T) {
	t.Parallel()
	written := map[string]map[string]any{"scan": {}, "recover": {}, "release": {}, "lint": lintReports(t), "probe": {
		"healthy": probeReport{SchemaVersion: schemaVersion, Path: "/mnt", Evidence: []string{}},
		"broken":  probeReport{SchemaVersion: schemaVersion, Path: "/mnt", Code: fault.HungMount, Evidence: []string{"it does not answer"}},
	}}
	for name, r := range reports {
		written["scan"][name] = r
	}
	for name, r := range changeReports(t) {
		verb, _, _ := strings.Cut(name, "-")
		written[verb][name] = r
	}
	for verb, of := range map[string]struct {
		kind reflect.Type
		key  string // without which nothing is valid
	}{
		"scan":    {reflect.TypeFor[scanReport](), "verdict"},
		"recover": {reflect.TypeFor[recoverReport](), "repairs"},
		"release": {reflect.TypeFor[releaseReport](), "before"},
		"lint":    {reflect.TypeFor[lintReport](), "looked"},
		"probe":   {reflect.TypeFor[probeReport](), "evidence"},
	} {
		checkSchema(t, verb, of.kind, of.key, written[verb])
	}
}

// lintReports are reports of lint: of a risk, and of a file that cannot be read.
func lintReports(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	for name, text := range map[string]string{"risk": lintExporter, "unreadable": lintClean + "---\nkind: Service\napiVersion: v1\n---\nkind: Pod\n"} {
		o := lintOptions{files: []string{"-"}}
		options, err := o.lintOptionsOf()
		if err != nil {
			t.Fatal(err)
		}
		report, err := o.readManifests(t.Context(), options, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = report
	}
	return all
}

func checkSchema(t *testing.T, verb string, kind reflect.Type, key string, written map[string]any) {
	t.Helper()
	whole := schemaOf(kind)
	if verb == "probe" { // without a fault there is no code
		code := whole["properties"].(map[string]any)["code"].(map[string]any)
		code["enum"] = append(slices.Clone(code["enum"].([]string)), "")
	}
	whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	whole["title"] = "kubediag " + verb + " -o json, schemaVersion 1"
	text, err := json.MarshalIndent(whole, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	name := filepath.Join(schemaDir, verb+".schema.json")
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
		t.Errorf("%s is old: write it with KUBEDIAG_GOLDEN=1 go test ./internal/cli/node (-file +types):\n%s", name, diff)
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

// TestDocumentsNameEveryField has no field be read that the page does not describe.
func TestDocumentsNameEveryField(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(schemaDir, "node.md"))
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
	names(schemaOf(reflect.TypeFor[faultChange]()))
	names(schemaOf(reflect.TypeFor[recoverReport]()))
	names(schemaOf(reflect.TypeFor[releaseReport]()))
	names(schemaOf(reflect.TypeFor[probeReport]()))
}
