// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

// known reads texts from the wild and the codes of each.
func known(t testing.TB) map[string][]fault.Code {
	t.Helper()
	content, err := os.ReadFile("testdata/texts.txt")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]fault.Code{}
	for line := range strings.Lines(string(content)) {
		names, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !found {
			continue
		}
		texts[text] = nil
		if names != "-" {
			for code := range strings.SplitSeq(names, ",") {
				texts[text] = append(texts[text], fault.Code(code))
			}
		}
	}
	return texts
}

func TestCodesOfTextsFromTheWild(t *testing.T) {
	t.Parallel()
	texts := known(t)
	if len(texts) < 30 {
		t.Fatalf("only %d texts were read", len(texts))
	}
	for text, want := range texts {
		if diff := cmp.Diff(want, codes(text)); diff != "" {
			t.Errorf("%s\n(-want +got):\n%s", text, diff)
		}
	}
}

func TestEveryFaultHasAWording(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Known() {
		if !slices.ContainsFunc(wordings, func(w wording) bool { return w.code == e.Code }) {
			t.Errorf("%s has no wording: add what the kubelet or the kernel writes about it to internal/kubelog/wordings.go, "+
				"and an example to testdata/texts.txt", e.Code)
		}
	}
}

func TestCodesArePastQuotesAndLines(t *testing.T) {
	t.Parallel()
	text := `mounting "/var/lib/kubelet/pods/u/volume-subpaths/v/c/1" to rootfs at "/x" caused: no such file or directory`
	for name, s := range map[string]string{
		"line before":   "Error: first line\n" + text,
		"line within":   strings.ReplaceAll(text, " caused", "\ncaused"),
		"capitals":      strings.ToUpper(text),
		"quoted twice":  strings.ReplaceAll(text, `"`, `\\\"`),
		"unknown after": text + ": unknown",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff([]fault.Code{fault.StaleSubPath}, codes(s)); diff != "" {
				t.Errorf("%s", diff)
			}
		})
	}
}

func FuzzCodes(f *testing.F) {
	for text := range known(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found := codes(text)
		if !slices.IsSorted(found) || len(slices.Compact(slices.Clone(found))) != len(found) {
			t.Errorf("codes = %q, want them in order and each once", found)
		}
		for _, code := range found {
			if _, ok := fault.Known().Lookup(code); !ok {
				t.Errorf("%q is not in the catalogue", code)
			}
		}
		if again := codes(strings.ToUpper(text)); len(text) < maxWording/4 && isASCII(text) && !slices.Equal(found, again) {
			t.Errorf("capitals change %q to %q", found, again)
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 127 })
}
