// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// module writes a module of test files into a folder of its own and goes there.
func module(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.org/m\n\ngo 1.26\n"
	for name, content := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	t.Chdir(dir)
}

// runTier runs a tier in the current folder and returns its output, the closing line apart.
func runTier(t *testing.T, tr tier) (ok bool, printed, closing string) {
	t.Helper()
	var out bytes.Buffer
	ok, err := run(t.Context(), &out, tr, options{fuzzTime: time.Second})
	must(t, err)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	return ok, out.String(), lines[len(lines)-1]
}

func TestFailuresAreCountedOnceAndShown(t *testing.T) {
	module(t, map[string]string{
		"a/a_test.go": `package a
import "testing"
func TestParts(t *testing.T) {
	t.Run("good", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) { t.Error("bad part") })
}
func TestItself(t *testing.T) { t.Run("good", func(t *testing.T) {}); t.Error("own fault") }
func TestSkipped(t *testing.T) { t.Skip("kernel lacks wings") }
func TestGood(t *testing.T) {}
`,
		"broken/b_test.go": "package broken\nimport \"testing\"\nvar _ = undefinedName\n\nfunc TestNever(t *testing.T) {}\n",
		"panics/p_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { t.Run("below", func(t *testing.T) { panic("out of order") }) }
`,
		"hangs/h_test.go": `package hangs
import ("flag"; "testing")
func TestMain(m *testing.M) { flag.Parse(); flag.Set("test.timeout", "2s"); m.Run() } // no other package is held to that
func TestHangs(t *testing.T) { select {} }
`,
		"leaks/l_test.go": `package leaks
import ("fmt"; "os"; "testing")
func TestMain(m *testing.M) { m.Run(); fmt.Println("left behind: a file"); os.Exit(1) }
func TestGood(t *testing.T) {}
`,
	})
	ok, printed, closing := runTier(t, tier{name: "unit"})
	if ok {
		t.Error("tier with failures is ok")
	}
	if want := "unit: 4 passed, 6 failed, 1 skipped"; closing != want {
		t.Errorf("closing line %q, want %q\n%s", closing, want, printed)
	}
	for _, want := range []string{
		"FAIL  example.org/m/a TestParts/bad", "bad part", "FAIL  example.org/m/a TestItself", "own fault",
		"undefined: undefinedName", "panic: out of order", "test timed out after 2s", "left behind: a file",
		"SKIP  example.org/m/a TestSkipped: kernel lacks wings",
	} {
		if strings.Count(printed, want) != 1 {
			t.Errorf("%q is printed %d times, want once\n%s", want, strings.Count(printed, want), printed)
		}
	}
}

func TestTierRunsItsOwnTestsAlone(t *testing.T) {
	built, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	must(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(built)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // for what fuzz tests find
	module(t, map[string]string{
		"a/a_test.go":      "package a\nimport \"testing\"\nfunc TestUnit(t *testing.T) { t.Error(\"unit\") }\n",
		"a/root_test.go":   "//go:build kernel\n\npackage a\nimport \"testing\"\nfunc TestRoot(t *testing.T) {}\n",
		"other/go.mod":     "module example.org/other\n",
		"other/o_test.go":  "//go:build kernel\n\npackage other\nimport \"testing\"\nfunc TestOther(t *testing.T) {}\n",
		"b/testdata/x.go":  "package nonsense",
		"b/b_test.go":      "package b\nimport \"testing\"\nfunc FuzzB(f *testing.F) { f.Add(\"b\"); f.Fuzz(func(t *testing.T, s string) {}) }\n",
		"c/darwin_test.go": "//go:build darwin\n\npackage c\n",
	})
	if ok, printed, closing := runTier(t, tier{name: "kernel", tag: "kernel"}); !ok || closing != "kernel: 1 passed, 0 failed, 0 skipped" {
		t.Errorf("ok %v\n%s", ok, printed)
	}
	if ok, printed, closing := runTier(t, tier{name: "fuzz", fuzz: true}); !ok || closing != "fuzz: 1 passed, 0 failed, 0 skipped" {
		t.Errorf("ok %v\n%s", ok, printed)
	}
	if ok, printed, closing := runTier(t, tier{name: "api", tag: "api"}); ok || closing != "api: 0 passed, 0 failed, 0 skipped" {
		t.Errorf("a tier without tests is ok: %v\n%s", ok, printed)
	}
}

// TestRunSelects has every tier run only the tests that a pattern selects, and no package without any.
func TestRunSelects(t *testing.T) {
	built, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	must(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(built)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // for what fuzz tests find
	const tests = "package a\nimport \"testing\"\nfunc Test%s(t *testing.T) { t.Run(\"x\", func(t *testing.T) {}); t.Run(\"y\", func(t *testing.T) { t.Error() }) }\n" +
		"func Test%sBad(t *testing.T) { t.Error() }\n"
	files := map[string]string{
		"a/unit_test.go":   fmt.Sprintf(tests, "Unit", "Unit"),
		"a/fuzz_test.go":   "package a\nimport \"testing\"\nfunc FuzzA(f *testing.F) { f.Add(\"a\"); f.Fuzz(func(t *testing.T, s string) {}) }\nfunc FuzzBad(f *testing.F) { f.Error() }\n",
		"other/o_test.go":  "package other\nimport \"testing\"\nvar _ = undefined\nfunc TestOther(t *testing.T) {}\n",
		"other/ok_test.go": "//go:build kernel\n\npackage other\nimport \"testing\"\nfunc TestOther2(t *testing.T) {}\n",
	}
	for _, tr := range tiers {
		if tr.tag != "" {
			files["a/"+tr.tag+"_test.go"] = "//go:build " + tr.tag + "\n\n" + fmt.Sprintf(tests, "U"+tr.tag, "U"+tr.tag)
		}
	}
	module(t, files)
	for _, tr := range tiers {
		if tr.name == "kernels" {
			continue // it starts virtual machines
		}
		only := map[string]string{"unit": "TestU(nit|kernel)$/x|TestNone", "fuzz": "FuzzA"}[tr.name]
		if only == "" {
			only = "TestU(nit|" + tr.tag + ")$/x"
		}
		var out bytes.Buffer
		ok, err := run(t.Context(), &out, tr, options{fuzzTime: time.Second, only: only})
		if want := tr.name + ": 1 passed, 0 failed, 0 skipped\n"; err != nil || !ok || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s: ok %v, %v, want it to end with %q\n%s", tr.name, ok, err, want, out.String())
		}
	}
	if _, err := run(t.Context(), io.Discard, tiers[0], options{only: "Test("}); err == nil || !strings.Contains(err.Error(), "reading pattern of tests") {
		t.Errorf("bad pattern: %v", err)
	}
}

func TestTopLevel(t *testing.T) {
	t.Parallel()
	for only, want := range map[string]string{
		"":                        "",
		"TestA":                   "TestA",
		"TestA/x|TestB":           "TestA|TestB",
		"Test(A|B)/(x|y)/z|TestC": "Test(A|B)|TestC",
		"Test[/|]A/x":             "Test[/|]A",
		`Test\(A/x|B`:             `Test\(A|B`,
	} {
		if got := topLevel(only); got != want {
			t.Errorf("%q: %q, want %q", only, got, want)
		}
	}
}

func TestReasonOfASkip(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"=== RUN   TestX\n    x_test.go:12: kernel lacks statmount (6.8)\n--- SKIP: TestX (0.00s)\n": "kernel lacks statmount (6.8)",
		"=== RUN   TestX\n--- SKIP: TestX (0.00s)\n":                                                 "",
		"plain\n": "plain",
	} {
		if diff := cmp.Diff(want, reason(output)); diff != "" {
			t.Errorf("reason of %q (-want +got):\n%s", output, diff)
		}
	}
}

// TestFuzzTimeIsNoFailure: only where nothing else is said.
func TestFuzzTimeIsNoFailure(t *testing.T) {
	t.Parallel()
	const progress = "FAIL  m/p FuzzX 3.4s\n      fuzz: elapsed: 0s, gathering baseline coverage: 0/80 completed\n" +
		"      fuzz: elapsed: 3s, execs: 60762 (20251/sec), new interesting: 5 (total: 85)\n"
	for said, want := range map[string]bool{
		progress + "          context deadline exceeded\n": true,
		progress: false,
		"":       false,
		progress + "          --- FAIL: FuzzX (0.00s)\n              x_test.go:1: context deadline exceeded\n":       false,
		progress + "          context deadline exceeded\n          Failing input written to testdata/fuzz/FuzzX/1\n": false,
	} {
		if got := ranOut(said); got != want {
			t.Errorf("%v, want %v of\n%s", got, want, said)
		}
	}
}

var must = kerneltest.Must
