// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
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
