// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestCatalogueIsComplete(t *testing.T) {
	t.Parallel()
	entries := Known()
	if !slices.IsSortedFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Code, b.Code) }) {
		t.Error("entries are not in the order of their codes")
	}
	for _, e := range entries {
		if found, ok := entries.Lookup(e.Code); !ok || found.Code != e.Code || found.Title != e.Title {
			t.Errorf("lookup of %q gives %+v", e.Code, found)
		}
		for _, problem := range problemsOf(e) {
			t.Errorf("the entry of %s: %s", e.Code, problem)
		}
	}
	if _, ok := entries.Lookup("NoSuchFault"); ok {
		t.Error("a code that is none was found")
	}
}

// problemsOf lists the fields that an entry lacks, and its contradictions.
func problemsOf(e Entry) (problems []string) {
	for _, path := range unset(reflect.ValueOf(e), "") {
		if !slices.Contains(e.Without, path) && path != "Without" {
			problems = append(problems, "set "+path+", or name it in Without")
		}
	}
	for _, name := range e.Without {
		if field := fieldAt(reflect.ValueOf(e), name); !field.IsValid() || !field.IsZero() {
			problems = append(problems, name+" is in Without, and is set or no field")
		}
	}
	known := func(field string, is bool, value any) {
		if !is && !reflect.ValueOf(value).IsZero() {
			problems = append(problems, field+" is not one of its constants")
		}
	}
	known("Severity", e.Severity == Critical || e.Severity == Warning, e.Severity)
	known("Family", slices.Contains(Families(), e.Family), e.Family)
	known("Scope", slices.Contains([]Scope{ScopeContainer, ScopeVolume, ScopeDevice, ScopeDirectory, ScopePlace}, e.Scope), e.Scope)
	for _, search := range e.Searches {
		known("Searches", slices.Contains(Searches(), search), search)
	}
	for kind := range e.Ways {
		if kind == Replace && slices.Contains(e.Actions, Unmount) {
			continue // a bind is replaced by an Unmount that binds again
		}
		known("Ways", slices.Contains(e.Actions, kind), kind)
	}
	if _, ok := e.At[PlaceUnknown]; !ok && e.At != nil {
		problems = append(problems, "At has nothing for a place that is not known")
	}
	for place, remedy := range e.At {
		known("At", slices.Contains(Places(), place), place)
		if len(remedy.Commands) == 0 && place != PlaceUnknown {
			problems = append(problems, "At "+string(place)+" has no commands")
		}
	}
	return problems
}

// fieldAt is the field of a struct with that path, such as Prevention.None.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		if v = v.FieldByName(name); !v.IsValid() {
			break
		}
	}
	return v
}

// unset lists the fields of a struct that have no value.
func unset(v reflect.Value, path string) (names []string) {
	for i := range v.NumField() {
		field, name := v.Field(i), path+v.Type().Field(i).Name
		switch {
		case field.Kind() == reflect.Struct:
			names = append(names, unset(field, name+".")...)
		case field.IsZero():
			names = append(names, name)
		}
	}
	return names
}

// TestForgottenFieldIsNamed for each field in turn, of an entry that has all others.
func TestForgottenFieldIsNamed(t *testing.T) {
	t.Parallel()
	for _, e := range Known() {
		for _, name := range unset(reflect.ValueOf(Entry{}), "") {
			if name == "Without" {
				continue
			}
			forgotten := e
			forgotten.Without = slices.DeleteFunc(slices.Clone(e.Without), func(n string) bool { return n == name })
			fieldAt(reflect.ValueOf(&forgotten).Elem(), name).SetZero()
			if !slices.ContainsFunc(problemsOf(forgotten), func(p string) bool { return strings.Contains(p, "set "+name) }) {
				t.Errorf("%s without %s: nothing names the field", e.Code, name)
			}
		}
	}
}

func TestEveryFaultHasARunbook(t *testing.T) {
	t.Parallel()
	for _, e := range Known() {
		page := "docs/runbook/" + string(e.Code) + ".md"
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range []string{"# " + string(e.Code), "## Cause", "## Proof", "## Repair", "## By hand"} {
			if !strings.Contains(string(text), want+"\n") {
				t.Errorf("%s has no line %q", page, want)
			}
		}
	}
}
