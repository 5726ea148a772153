// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// testFile is a file of tests.
type testFile struct {
	dir   string   // its package, such as ./internal/fault
	tag   string   // its build tag, empty if it has none
	tests []string // names of its tests, examples included
	fuzz  []string // names of its fuzz tests, if it has no tag
	bench bool     // whether it has benchmarks
}

// findTests reads all test files below root, in order, and leaves out modules of their own.
func findTests(root string) ([]testFile, error) {
	var found []testFile
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return skipDir(root, name)
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := readTests(name)
		if err == nil {
			rel, _ := filepath.Rel(root, filepath.Dir(name))
			f.dir = "./" + filepath.ToSlash(rel)
			found = append(found, f)
		}
		return err
	})
	return found, err
}

func skipDir(root, name string) error {
	if name == root {
		return nil
	}
	base := filepath.Base(name)
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil || base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	return nil
}

func readTests(name string) (testFile, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return testFile{}, err
	}
	f := testFile{tag: buildTag(file)}
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil {
			continue
		}
		switch n := fn.Name.Name; {
		case n == "TestMain":
		case strings.HasPrefix(n, "Benchmark"):
			f.bench = true
		case strings.HasPrefix(n, "Test") || strings.HasPrefix(n, "Example"):
			f.tests = append(f.tests, n)
		case strings.HasPrefix(n, "Fuzz"):
			f.tests = append(f.tests, n)
			if f.tag == "" {
				f.fuzz = append(f.fuzz, n)
			}
		}
	}
	return f, nil
}

// buildTag returns the tag of a file whose constraint is one tag alone. Any other constraint comes back as it stands,
// and is the tag of no tier.
func buildTag(file *ast.File) string {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if c.Pos() < file.Package && constraint.IsGoBuild(c.Text) {
				return strings.TrimSpace(strings.TrimPrefix(c.Text, "//go:build"))
			}
		}
	}
	return ""
}

// matching returns the files with only those tests that go test -run would run, or whose subtests it would; empty: all.
func matching(found []testFile, only string) ([]testFile, error) {
	names, err := regexp.Compile(topLevel(only))
	if err != nil {
		return nil, fmt.Errorf("reading pattern of tests: %w", err)
	}
	differs := func(name string) bool { return !names.MatchString(name) }
	found = slices.Clone(found)
	for i, f := range found {
		found[i].tests = slices.DeleteFunc(slices.Clone(f.tests), differs)
		found[i].fuzz = slices.DeleteFunc(slices.Clone(f.fuzz), differs)
	}
	return found, nil
}

// topLevel returns a pattern of go test -run without the parts that are about subtests: A|B of A/x|B. Brackets keep their
// slashes, as there.
func topLevel(only string) string {
	var top strings.Builder
	depth, below, escaped := 0, false, false
	for _, c := range only {
		switch {
		case escaped:
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		case depth == 0 && c == '/':
			below = true
		case depth == 0 && c == '|':
			below = false
		}
		escaped = c == '\\' && !escaped
		if !below {
			top.WriteRune(c)
		}
	}
	return top.String()
}

// packages lists the packages that have tests in files with the tag.
func packages(found []testFile, tag string) []string {
	var dirs []string
	for _, f := range found {
		if f.tag == tag && len(f.tests) > 0 && !slices.Contains(dirs, f.dir) {
			dirs = append(dirs, f.dir)
		}
	}
	return dirs
}

// pattern matches the tests of a package that stand in files with the tag.
func pattern(found []testFile, dir, tag string) string {
	var names []string
	for _, f := range found {
		if f.dir == dir && f.tag == tag {
			names = append(names, f.tests...)
		}
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
