// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/render"
)

// brokenPipe takes nothing.
type brokenPipe struct{}

var errBroken = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

func TestJSONHasNothingForTerminals(t *testing.T) {
	t.Parallel()
	in := map[string]string{"key\u009b": "\x1b[31m \u009b \u202e \U000e0001 é <&> \\"}
	var b strings.Builder
	must(t, render.WriteJSON(&b, in))
	if strings.ContainsFunc(b.String(), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("written: %q", b.String())
	}
	var out map[string]string
	must(t, json.Unmarshal([]byte(b.String()), &out))
	if diff := cmp.Diff(in, out); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if err := render.WriteJSON(brokenPipe{}, in); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want that of the pipe", err)
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	f := addFormat(cmd)
	if err := cmd.Flags().Set("output", "json"); err != nil || *f != verb.JSON {
		t.Errorf("format %q, %v, want json", *f, err)
	}
	for _, bad := range []string{"", "xml", "JSON", "yaml"} {
		if err := cmd.Flags().Set("output", bad); err == nil || !strings.Contains(err.Error(), `must be "text" or "json"`) || *f != verb.JSON {
			t.Errorf("%q is taken as a format", bad)
		}
	}
}
