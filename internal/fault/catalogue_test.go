// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCatalogueIsComplete(t *testing.T) {
	t.Parallel()
	entries := Catalogue()
	if !slices.IsSortedFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Code, b.Code) }) {
		t.Error("entries are not in the order of their codes")
	}
	for _, e := range entries {
		if found, ok := Lookup(e.Code); !ok || found.Code != e.Code || found.Title != e.Title {
			t.Errorf("lookup of %q gives %+v", e.Code, found)
		}
		for field, value := range map[string]string{"Title": e.Title, "Fact": e.Fact, "Repair": e.Repair, "NoPlan": e.NoPlan, "Next": e.Next} {
			if value == "" {
				t.Errorf("%s has no %s: set it in internal/fault/catalogue.go", e.Code, field)
			}
		}
		if e.Severity != Critical && e.Severity != Warning {
			t.Errorf("%s has severity %q", e.Code, e.Severity)
		}
		if !slices.Contains(Families(), e.Family) {
			t.Errorf("%s has family %q: set Family in internal/fault/catalogue.go to one of %q", e.Code, e.Family, Families())
		}
		if len(e.Actions) == 0 && e.Operation != "" {
			t.Errorf("%s has no Actions, and Operation %q: set the Actions of that in internal/fault/catalogue.go", e.Code, e.Operation)
		}
		if len(e.Searches) == 0 {
			t.Errorf("%s is found by no search, so neither scan nor the sentinel reports it: set Searches in internal/fault/catalogue.go", e.Code)
		}
		for _, search := range e.Searches {
			if !slices.Contains(Searches(), search) {
				t.Errorf("%s is found by the search %q: it is none of %q", e.Code, search, Searches())
			}
		}
	}
	if _, ok := Lookup("NoSuchFault"); ok {
		t.Error("a code that is none was found")
	}
}

func TestEveryFaultHasARunbook(t *testing.T) {
	t.Parallel()
	for _, e := range Catalogue() {
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
