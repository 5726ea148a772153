// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
)

// TestEveryCodeIsSearchedFor has scan run each search of the catalogue, and --only those that find the code.
func TestEveryCodeIsSearchedFor(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Known() {
		var got []fault.Search
		for _, s := range searchesFor([]string{string(e.Code)}) {
			got = append(got, s.Kind)
		}
		for _, want := range e.Searches {
			if !slices.Contains(got, want) {
				t.Errorf("--only=%s runs the searches %q: add %q to internal/faults/searches", e.Code, got, want)
			}
		}
		if len(got) != len(e.Searches) {
			t.Errorf("--only=%s runs the searches %q, want %q", e.Code, got, e.Searches)
		}
	}
}

func TestScanNamesWrongFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--orphan-minimum-age=4m59s":                 "--orphan-minimum-age=4m59s: must be between 5m and 720h",
		"--orphan-minimum-age=721h":                  "--orphan-minimum-age=721h0m0s: must be between 5m and 720h",
		"--orphan-minimum-age=5m --kubelet-root=a":   `--kubelet-root="a": must be an absolute path without . and .. in it`,
		"--orphan-minimum-age=720h --kubelet-pid=-1": "--kubelet-pid=-1: must not be negative",
		"--only=HungMount,Nope":                      `--only="Nope": is none of ` + strings.Join(verb.Codes(), ", "),
		"--pod=/web":                                 `--pod="/web": must be NAMESPACE/NAME, or a UID`,
		"--watch=10ms":                               "--watch=10ms: must be between 1s and 1h",
		"--watch --pods=-":                           "--watch: cannot be with --pods=-: standard input is read once",
		"--brief -o json":                            "--brief: cannot be with --output=json",
		"--brief -v":                                 "--brief: cannot be with --verbose",
		"--brief -o html":                            "--brief: cannot be with --output=html",
		"--watch -o html":                            "--watch: cannot be with --output=html",
		"--lang=fr -o html":                          `invalid argument "fr" for "--lang" flag: must be en or zh`,
	} {
		if _, err := verbtest.Run(t, NewScanCommand(""), strings.Fields(args)...); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
