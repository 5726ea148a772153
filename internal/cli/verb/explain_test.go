// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"os"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Known() {
		for language, part := range map[string]string{"en": "By hand", "zh": "手工处理"} {
			out, err := verbtest.Run(t, NewExplainCommand("kubediag"), string(e.Code), "--lang", language)
			if err != nil || !strings.HasPrefix(out, string(e.Code)+"\n") || !strings.Contains(out, "\n"+part+"\n") || strings.Contains(out, "](") {
				t.Errorf("%s in %s: %v\n%.300s", e.Code, language, err, out)
			}
		}
	}
	for word, want := range map[string]string{"hung": "HungMount\n", "STALEF": "StaleFileHandle\n", "stalesubpath": "StaleSubPath\n"} {
		if out, err := verbtest.Run(t, NewExplainCommand("kubediag"), word); err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %v, %.40q", word, err, out)
		}
	}
	for args, want := range map[string]string{
		"stale":            `"stale": may be any of StaleFileHandle, StaleSubPath`,
		"nope":             `"nope": is none of DeletedVolumeSource, DisconnectedFUSE`,
		"hung --lang=de":   `--lang="de": must be en or zh`,
		"one two":          "one CODE at a time",
		"../../etc/passwd": "is none of",
	} {
		if _, err := verbtest.Run(t, NewExplainCommand("kubediag"), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
	out, err := verbtest.Run(t, NewExplainCommand("kubediag"))
	if err != nil || strings.Count(out, "\n") != len(fault.Known()) {
		t.Errorf("the list: %v, %q", err, out)
	}
}

// TestCommandsOfPagesAreComplete has no command of a page be broken, at any width.
func TestCommandsOfPagesAreComplete(t *testing.T) {
	t.Setenv("COLUMNS", "40")
	for _, e := range fault.Known() {
		page, err := os.ReadFile("../../../docs/runbook/" + string(e.Code) + ".md")
		if err != nil {
			t.Fatal(err)
		}
		out, err := verbtest.Run(t, NewExplainCommand("kubediag"), string(e.Code))
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(page), "```")
		for i := 1; i < len(blocks); i += 2 {
			_, code, _ := strings.Cut(blocks[i], "\n") // the first line may name a language
			for line := range strings.Lines(code) {
				if !strings.Contains(out, "    "+line) {
					t.Errorf("%s: %q is broken", e.Code, line)
				}
			}
		}
	}
}
