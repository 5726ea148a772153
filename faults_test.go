// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
)

// handPlace is a place that has to know a code and that a person writes. All other places are made from the catalogue.
type handPlace struct {
	name  string // as docs/adding-a-fault.md has it, with CODE for the code
	knows func(t *testing.T, c fault.Catalogue, code fault.Code) bool
}

var handPlaces = []handPlace{
	{"internal/fault/catalogue.go", func(_ *testing.T, c fault.Catalogue, code fault.Code) bool {
		_, ok := c.Lookup(code)
		return ok
	}},
	{"internal/faults", func(t *testing.T, _ fault.Catalogue, code fault.Code) bool {
		return named(t, code, func(s source) bool { return strings.HasPrefix(s.name, "internal/faults/") && !s.test() })
	}},
	{"_kernel_test.go", func(t *testing.T, _ fault.Catalogue, code fault.Code) bool {
		return named(t, code, func(s source) bool { return strings.HasSuffix(s.name, "_kernel_test.go") })
	}},
	{"internal/kubelog/wordings.go", func(t *testing.T, _ fault.Catalogue, code fault.Code) bool {
		return named(t, code, func(s source) bool { return s.name == "internal/kubelog/wordings.go" })
	}},
	{"internal/kubelog/testdata/texts.txt", func(t *testing.T, _ fault.Catalogue, code fault.Code) bool {
		return regexp.MustCompile(`(?m)^([A-Za-z]+,)*` + string(code) + `[,\t]`).MatchString(content(t, "internal/kubelog/testdata/texts.txt"))
	}},
	{"docs/runbook/CODE.md", runbook(".md")},
	{"docs/runbook/CODE.zh-CN.md", runbook(".zh-CN.md")},
}

// named reports whether one of the sources has the constant of a code.
func named(t *testing.T, code fault.Code, in func(source) bool) bool {
	t.Helper()
	constant := regexp.MustCompile(`\bfault\.` + string(code) + `\b`)
	return slices.ContainsFunc(allSources(t), func(s source) bool { return in(s) && constant.MatchString(s.content) })
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return string(text)
}

func runbook(suffix string) func(*testing.T, fault.Catalogue, fault.Code) bool {
	return func(_ *testing.T, _ fault.Catalogue, code fault.Code) bool {
		_, err := os.Stat("docs/runbook/" + string(code) + suffix)
		return err == nil
	}
}

func TestEveryPlaceKnowsEveryFault(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Known() {
		for _, place := range handPlaces {
			if !place.knows(t, fault.Known(), e.Code) {
				t.Errorf("%s does not know %s: see docs/adding-a-fault.md", place.name, e.Code)
			}
		}
	}
}

// TestAddedFaultIsMissed gives the catalogue a code that is nowhere else. Each other place has to say so, and the page names it.
func TestAddedFaultIsMissed(t *testing.T) {
	t.Parallel()
	example := fault.Known()[0]
	example.Code = "AddedFault"
	added := append(slices.Clone(fault.Known()), example)
	page := content(t, "docs/adding-a-fault.md")
	for i, place := range handPlaces {
		if place.knows(t, added, example.Code) != (i == 0) {
			t.Errorf("%s is said to know a code that only the catalogue has", place.name)
		}
		if !strings.Contains(page, place.name) {
			t.Errorf("docs/adding-a-fault.md does not name %s", place.name)
		}
	}
}

// conditions are files that decide something by a code, beside the judges of internal/faults: each acts for one fault, or reads
// texts. All others read the entry.
var conditions = map[string]string{
	"internal/kubelog/wordings.go":            "the words of the kubelet and the kernel about each fault",
	"internal/lint/lint.go":                   "the fault that each risk becomes",
	"internal/sentinel/bind.go":               "the repair of stale binds",
	"internal/podinfo/finding.go":             "the place of a socket that a judge looks for",
	"internal/cli/node/probe.go":              "the judge of one path",
	"internal/cli/node/release.go":            "the verb of one fault",
	"internal/processor/subpath/recoverer.go": "the repair of stale binds",
	"internal/processor/volume/diagnoser.go":  "what became of a daemon",
}

// TestCodesAreConditionsOfJudgesOnly finds the constants of codes in the product.
func TestCodesAreConditionsOfJudgesOnly(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, src := range allSources(t) {
		if src.test() || src.dir() == "internal/fault" || strings.HasPrefix(src.name, "internal/faults/") {
			continue
		}
		for _, e := range fault.Known() {
			if !regexp.MustCompile(`\bfault\.` + string(e.Code) + `\b`).MatchString(src.content) {
				continue
			}
			if found[src.name] = true; conditions[src.name] == "" {
				t.Errorf("%s names fault.%s: set a field of its entry in internal/fault/catalogue.go, and read that", src.name, e.Code)
			}
		}
	}
	for name := range conditions {
		if !found[name] {
			t.Errorf("%s names no code any more: take it out of the list", name)
		}
	}
}
