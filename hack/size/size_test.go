// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wantReport is the report of testdata/tree. Its comments have 36 words, 2 bad openings and one "what" within a sentence; its page has
// 37 words and 3 bad openings.
const wantReport = `
                                                               product   tests     tools     wanted of product (!: not so)
lines                                                          73        6         3
files                                                          4         2         1
packages                                                       3         2         1
lines of a function, p50/p90/p99/max                           1/1/7/7   1/1/1/1   1/1/1/1
functions per 1000 lines                                       178.1     333.3     333.3     at most 42  !
functions used once, %                                         21.4                          at most 27
chains of three or more of them                                1                             at most 15
length of names, median                                        5         6         4         at least 9  !
length of names, p90                                           8         6         4
length of every declared name, p50/p90                         5/8       6/6       4/4
fields of the widest struct                                    7                             at most 20
depth of embedding                                             2                             at most 1  !
methods of the widest receiver                                 4                             at most 20
names that more than two packages share                        1         0         0
What/Who/Where/That/Of sentences per 10000 words of comments   555.6     0         0         at most 5  !
What/Who/Where/That/Of sentences per 10000 words of docs       810.8                         at most 5  !
relative what in 10000 words of comments                       277.8     0         0         at most 15  !

widest structs, in fields:
    7  internal/one.deep
    3  internal/one.wide
    3  internal/two.Pair
    1  internal/two.shared
    0  internal/one.wide2

widest receivers, in methods:
    4  internal/one.deep
    4  internal/one.wide
    1  internal/one.wide2
    0  internal/two.Pair
    0  internal/two.shared

most shared names, in packages:
    3  shared

longest chains of functions used once:
    3  internal/one.first
`

func TestReportOfTree(t *testing.T) {
	t.Parallel()
	measured, err := measureTree("testdata/tree")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantReport, "\n"+measured.report()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// maxShared is the most names that more than two packages of the product may share. Lower it when the count sinks.
const maxShared = 70

// TestSharedNamesDoNotGrow: a name that many packages declare says too little in each.
func TestSharedNamesDoNotGrow(t *testing.T) {
	t.Parallel()
	measured, err := measureTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	shared := measured.areas[product].sharedNames()
	if len(shared) > maxShared {
		t.Errorf("%d names are declared by more than %d packages, at most %d: give the new one a name that says what it is:\n%v",
			len(shared), maxPackages, maxShared, shared)
	}
}

func TestTreeThatIsMissingOrBroken(t *testing.T) {
	t.Parallel()
	if _, err := measureTree("testdata/missing"); err == nil {
		t.Error("missing folder: no error")
	}
	if err := newCode().addFile("broken.go", []byte("package broken, with words")); err == nil {
		t.Error("file that is not Go: no error")
	}
}

func TestAreaOfFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]area{
		"cmd/agent/main.go":                  product,
		"api/v1/trigger_types.go":            product,
		"root_test.go":                       tests,
		"hack/tier/tier_test.go":             tests,
		"test/cluster/image.go":              tests,
		"internal/linux/kerneltest/needs.go": tests,
		"pkg/e2e/run.go":                     tests,
		"hack/tier/main.go":                  tools,
	} {
		if got := areaOf(file); got != want {
			t.Errorf("%s is of area %d, want %d", file, got, want)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	values := []int{5, 1, 4, 2, 3}
	for percent, want := range map[int]int{0: 1, 50: 3, 90: 5, 100: 5} {
		if got := percentile(values, percent); got != want {
			t.Errorf("percentile %d is %d, want %d", percent, got, want)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("median of nothing is %d", got)
	}
}

func TestBadOpenings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"What is this? That is it.":              1,
		"It says\nWhat it wants. Who\ndoes not?": 0,
		"Whatever. Offer. Thatch.":               0,
		"+kubebuilder:What\nOf course.":          1,
		"Text.\n\n\tWhat code.\n\nWhere? Where!": 1,
		"1. What\n2. Who\n> Of":                  3,
	} {
		var p prose
		p.addText(text)
		if p.badOpenings != want {
			t.Errorf("%q opens badly %d times, want %d", text, p.badOpenings, want)
		}
	}
}
