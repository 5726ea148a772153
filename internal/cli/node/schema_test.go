// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/schematest"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/jsonparts"
)

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

// TestSchemas keeps the files that are handed out the same as the types, and the output the same as the files.
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
		whole := schematest.TypeSchema(of.kind, enumValues())
		if verb == "probe" { // without a fault there is no code
			code := whole["properties"].(map[string]any)["code"].(map[string]any)
			code["enum"] = append(slices.Clone(code["enum"].([]string)), "")
		}
		schematest.Check(t, "kubediag "+verb, whole, of.key, written[verb])
	}
	holders := map[string]any{}
	for name, r := range holdersReports(t) {
		holders[name] = r
	}
	schematest.Check(t, "kubediag holders", map[string]any{"oneOf": []any{
		schematest.TypeSchema(reflect.TypeFor[holdersReport](), enumValues()), schematest.TypeSchema(reflect.TypeFor[abandonedReport](), enumValues()),
	}}, "looked", holders)
}

// TestPartsAreFlat reads and writes documents that have all fields: no part of their types shows.
func TestPartsAreFlat(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]any{"scan-coverage": &scanCoverage{}, "holder-coverage": &holderCoverage{}, "holder": &useHolder{}} {
		want, err := os.ReadFile(filepath.Join("testdata", "flat-"+name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(want, document); err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(document, "", "  ")
		if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// UnmarshalJSON implements json.Unmarshaler: tests alone read reports of holders.
func (l *holderCoverage) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, l) }

// UnmarshalJSON implements json.Unmarshaler: tests alone read reports of holders.
func (h *useHolder) UnmarshalJSON(text []byte) error { return jsonparts.Unmarshal(text, h) }

// lintReports are reports of lint: of a risk, and of a file that cannot be read.
func lintReports(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	for name, text := range map[string]string{"risk": lintExporter, "unreadable": lintClean + "---\nkind: Service\napiVersion: v1\n---\nkind: Pod\n"} {
		o := lintOptions{files: []string{"-"}}
		options, err := o.lintOptionsOf()
		must(t, err)
		report, err := o.readManifests(t.Context(), options, strings.NewReader(text))
		must(t, err)
		all[name] = report
	}
	return all
}

// TestDocumentsNameEveryField has no field be read that the pages do not describe.
func TestDocumentsNameEveryField(t *testing.T) {
	t.Parallel()
	var page []byte
	for _, name := range []string{"node.md", "node-json.md"} {
		text, err := os.ReadFile(filepath.Join(schematest.Dir, name))
		must(t, err)
		page = append(page, text...)
	}
	var names func(schema map[string]any)
	names = func(schema map[string]any) {
		if items, ok := schema["items"].(map[string]any); ok {
			names(items)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, inner := range properties {
			if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), `"`+name+`"`) {
				t.Errorf("the pages do not name the field %s", name)
			}
			names(inner.(map[string]any))
		}
	}
	names(schematest.TypeSchema(reflect.TypeFor[scanReport](), enumValues()))
	names(schematest.TypeSchema(reflect.TypeFor[faultChange](), enumValues()))
	names(schematest.TypeSchema(reflect.TypeFor[recoverReport](), enumValues()))
	names(schematest.TypeSchema(reflect.TypeFor[releaseReport](), enumValues()))
	names(schematest.TypeSchema(reflect.TypeFor[probeReport](), enumValues()))
}
