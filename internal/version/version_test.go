// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestCLIImage stamps a release as the linker does: no other test of it runs beside it.
func TestCLIImage(t *testing.T) {
	if got := CLIImage(); got != "localhost/kubediag/cli:"+next {
		t.Errorf("without a version: %q", got)
	}
	version, registry = "v9.8.7", "registry.example.org/k"
	defer func() { version, registry = unversioned, "localhost/kubediag" }()
	if got := CLIImage(); got != "registry.example.org/k/cli:v9.8.7" {
		t.Errorf("of a release: %q", got)
	}
}

func TestInfoOf(t *testing.T) {
	t.Parallel()
	here := Info{Version: "unversioned", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	clean, dirty := here, here
	clean.Commit, clean.Date = "cf2324db", "2026-11-26T07:00:00Z"
	dirty.Commit, dirty.Date = "cf2324db-dirty", "2026-11-26T07:00:00Z"
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	revision, at := setting("vcs.revision", "cf2324db"), setting("vcs.time", "2026-11-26T07:00:00Z")
	for name, c := range map[string]struct {
		settings []debug.BuildSetting
		want     Info
	}{
		"no repository": {nil, here},
		"a clean one":   {[]debug.BuildSetting{revision, at, setting("vcs.modified", "false")}, clean},
		"changed files": {[]debug.BuildSetting{setting("vcs.modified", "true"), revision, at}, dirty},
		"no revision":   {[]debug.BuildSetting{setting("vcs.modified", "true")}, here},
	} {
		if got := infoOf(c.settings); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
