// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys_test

import (
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

func TestTooOld(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{
		"4.19.0-26-amd64": true, "5.9.16": true, "3.10.0-1160.el7.x86_64": true, "5.4.0-150-generic": true,
		"5.10": false, "5.10.0-46-cloud-amd64": false, "5.15.0": false, "6.1.0-56-cloud-amd64": false, "10.0": false,
		"": false, "rolling": false, "5": false,
	} {
		if got := sys.TooOld(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

func TestReleaseIsThatOfProc(t *testing.T) {
	t.Parallel()
	want, err := sys.ReadProc("sys/kernel/osrelease", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := sys.Release(); got != strings.TrimSpace(string(want)) {
		t.Errorf("release %q, want %q", got, want)
	}
}

// TestFeatureIsDue from its first version on, and on a kernel whose version is not known.
func TestFeatureIsDue(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{"6.7.12-generic": false, "5.10": false, "6.8.0-rc1": true, "6.10": true, "7.0": true, "": true} {
		if got := (&sys.Feature{Kernel: "6.8"}).IsDue(release); got != want {
			t.Errorf("%q: %t", release, got)
		}
	}
}
