// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package program gives tests the programs of this module. It is for tests alone.
package program

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// Env names the folder of programs that were built before, on a machine that cannot build them.
const Env = "KUBEDIAG_PROGRAMS"

// Build builds a program of this module, such as cmd/kubediag, and gives its path. It is built without cgo, as it is shipped. flags are
// more flags of go build.
func Build(t testing.TB, name string, flags ...string) string {
	t.Helper()
	if dir := os.Getenv(Env); dir != "" {
		return filepath.Join(dir, path.Base(name))
	}
	to := filepath.Join(t.TempDir(), path.Base(name))
	build := exec.Command("go", slices.Concat([]string{"build", "-o", to}, flags, []string{"kubediag.org/kubediag/" + name})...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	return to
}
