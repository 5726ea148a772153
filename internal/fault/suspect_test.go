// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// known reads texts from the wild and what each points at.
func known(t testing.TB) map[string][]Code {
	t.Helper()
	content, err := os.ReadFile("testdata/texts.txt")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]Code{}
	for line := range strings.Lines(string(content)) {
		codes, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !found {
			continue
		}
		texts[text] = nil
		if codes != "-" {
			for code := range strings.SplitSeq(codes, ",") {
				texts[text] = append(texts[text], Code(code))
			}
		}
	}
	return texts
}

func TestSuspectKnowsTextsFromTheWild(t *testing.T) {
	t.Parallel()
	texts := known(t)
	if len(texts) < 30 {
		t.Fatalf("only %d texts were read", len(texts))
	}
	for text, want := range texts {
		if diff := cmp.Diff(want, Suspect(text)); diff != "" {
			t.Errorf("%s\n(-want +got):\n%s", text, diff)
		}
	}
}

func TestSuspectReadsPastQuotesAndLines(t *testing.T) {
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
			if diff := cmp.Diff([]Code{StaleSubPath}, Suspect(s)); diff != "" {
				t.Errorf("%s", diff)
			}
		})
	}
}

func FuzzSuspect(f *testing.F) {
	for text := range known(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		codes := Suspect(text)
		if !slices.IsSorted(codes) || len(slices.Compact(slices.Clone(codes))) != len(codes) {
			t.Errorf("codes = %q, want them in order and each once", codes)
		}
		for _, code := range codes {
			if _, ok := Lookup(code); !ok {
				t.Errorf("%q is not in the catalogue", code)
			}
		}
		if again := Suspect(strings.ToUpper(text)); len(text) < maxSuspectText/4 && isASCII(text) && !slices.Equal(codes, again) {
			t.Errorf("capitals change %q to %q", codes, again)
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 127 })
}
