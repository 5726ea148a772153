// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package verbtest runs a verb alone and compares its output with a file, for the tests of the packages that make verbs.
package verbtest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/ui"
)

// Run runs a verb with arguments, and returns its output and its error.
func Run(t testing.TB, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// Page is a page as it is written, without its style sheet.
func Page(t testing.TB, p ui.Page) string {
	t.Helper()
	var b strings.Builder
	if err := ui.Write(&b, p); err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(b.String(), "<meta http-equiv")
	_, rest, found := strings.Cut(rest, "</style>\n")
	if !found {
		t.Fatalf("the page has no style sheet:\n%s", b.String())
	}
	return head + rest
}

// Golden compares a text with a file of testdata, or writes the file if KUBEDIAG_GOLDEN is set.
func Golden(t testing.TB, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
