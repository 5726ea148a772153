// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"go/ast"
	"strings"
	"testing"
)

// Most lines of a function, of a file, of a file of tests and of a main package.
const (
	maxFunc = 80
	maxFile = 400
	maxTest = 600
	maxMain = 40
)

// tooLarge lists what may be larger, with the reason: "file.go" or "file.go: function".
var tooLarge = map[string]string{}

func TestSizes(t *testing.T) {
	t.Parallel()
	allowed := map[string]bool{}
	check := func(what string, lines, limit int) {
		if lines <= limit {
			return
		}
		if tooLarge[what] == "" {
			t.Errorf("%s has %d lines, %d at most", what, lines, limit)
		}
		allowed[what] = true
	}
	for _, src := range allSources(t) {
		if src.generated() {
			continue
		}
		check(src.name, strings.Count(src.content, "\n"), fileLimit(src))
		for _, d := range src.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				check(src.name+": "+f.Name.Name, height(f)-tables(src, f), maxFunc)
			}
		}
	}
	for what := range tooLarge {
		if !allowed[what] {
			t.Errorf("%s may be too large, but is not", what)
		}
	}
}

func fileLimit(src source) int {
	switch {
	case strings.HasSuffix(src.name, "_test.go"):
		return maxTest
	case strings.HasPrefix(src.name, "cmd/"):
		return maxMain
	}
	return maxFile
}

// tables counts the lines that the tables of a test take: a list of cases is not long in the way that code is.
func tables(src source, f *ast.FuncDecl) int {
	lines := 0
	if !strings.HasSuffix(src.name, "_test.go") {
		return 0
	}
	ast.Inspect(f, func(n ast.Node) bool {
		table, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch table.Type.(type) {
		case *ast.MapType, *ast.ArrayType:
			lines += height(table) - 1
			return false
		}
		return true
	})
	return lines
}
