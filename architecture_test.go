// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	architecturePage = "docs/architecture.md"
	mapHeading       = "\n## The map of the tree\n\n`make generate` writes it from the comments of the packages.\n\n"
)

// TestMapIsCurrent compares the map with the comments of the packages. With KUBEDIAG_GOLDEN it writes the map.
func TestMapIsCurrent(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(architecturePage)
	must(t, err)
	before, got, found := strings.Cut(string(page), mapHeading)
	if !found {
		t.Fatalf("%s has no section for the map", architecturePage)
	}
	want := packageMap(t)
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		must(t, os.WriteFile(architecturePage, []byte(before+mapHeading+want), 0o644))
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is not current, run make generate (-comments +page):\n%s", architecturePage, diff)
	}
}

// packageMap has a row for each package, with the first sentence of its comment.
func packageMap(t *testing.T) string {
	t.Helper()
	rows := map[string]string{}
	for _, src := range allSources(t) {
		name, text := src.file.Name.Name, src.file.Doc.Text()
		if src.dir() == "." || !saysPackage(src.file) {
			continue
		}
		text = strings.TrimPrefix(strings.TrimPrefix(new(doc.Package).Synopsis(text), "Package "+name+" "), "Command ")
		rows[src.dir()] = strings.ReplaceAll(strings.TrimSuffix(text, "."), "|", "\\|")
	}
	var b strings.Builder
	b.WriteString("| package | contents |\n|---|---|\n")
	for _, dir := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", dir, rows[dir])
	}
	return b.String()
}

// walkLine is a line of a walk: its depth, a package and a function of it.
var walkLine = regexp.MustCompile("(?m)^( *)- `([a-z/]+)` `([A-Za-z.]+)`")

// TestWalksAreTrue: each function of a walk exists, and its caller names it.
func TestWalksAreTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(architecturePage)
	must(t, err)
	functions := map[string]*ast.FuncDecl{}
	for _, src := range allSources(t) {
		for _, d := range src.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !strings.HasSuffix(src.name, "_test.go") {
				name := f.Name.Name
				if f.Recv != nil {
					name = receiver(f).Name + "." + name
				}
				functions[src.dir()+" "+name] = f
			}
		}
	}
	_, walks, _ := strings.Cut(string(page), "\n## Three walks\n")
	lines := walkLine.FindAllStringSubmatch(walks, -1)
	if len(lines) < 30 {
		t.Fatalf("the walks have %d lines", len(lines))
	}
	var callers []*ast.FuncDecl
	for _, line := range lines {
		depth := len(line[1]) / 2
		f := functions[line[2]+" "+line[3]]
		if f == nil {
			t.Fatalf("%s: package %s has no function %s: correct the walk", architecturePage, line[2], line[3])
		}
		if callers = callers[:min(depth, len(callers))]; depth > len(callers) {
			t.Fatalf("%s: %s has no caller", architecturePage, line[3])
		}
		if depth > 0 && !names(callers[depth-1], f.Name.Name) {
			t.Errorf("%s: %s no longer calls %s of %s: correct the walk", architecturePage, callers[depth-1].Name.Name, line[3], line[2])
		}
		callers = append(callers, f)
	}
}

// names reports whether the body of a function has an identifier.
func names(f *ast.FuncDecl, name string) (found bool) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == name
		return !found
	})
	return found
}

// TestContributingIsShort: an outsider reads it in the first hour.
func TestContributingIsShort(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("CONTRIBUTING.md")
	must(t, err)
	if most := 4 << 10; len(page) > most {
		t.Errorf("CONTRIBUTING.md has %d bytes, at most %d", len(page), most)
	}
}
