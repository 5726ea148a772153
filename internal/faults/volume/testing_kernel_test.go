// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func procRoot(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), "root", name)
}

func expectSameMounts(t *testing.T, before, after map[string]bool) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("mounts have changed (-before +after):\n%s", diff)
	}
}
