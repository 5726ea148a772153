// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words that must not stand in a file, each with its reason.
var words = []struct {
	pattern *regexp.Regexp
	tests   bool // whether they may stand in tests
	why     string
}{
	{regexp.MustCompile(`(^|[^.\w])(TODO|FIXME|XXX)\b`), true, "what is left to do is not left in the code"},
	{regexp.MustCompile(`(^|[\s"'=(])/(work|root|home)/`), false, "a path of somebody's machine"},
	{regexp.MustCompile(`\.\./shared\b`), false, "a path that only its author has"},
	{regexp.MustCompile(`(proxy\.golang\.org|registry\.npmjs|deb\.debian\.org)`), false, "where packages come from is a matter of the machine"},
	{regexp.MustCompile(`(?m)^\s*(//|#)\s*[-=*#]{4,}\s*$`), false, "a line that says nothing"},
	{regexp.MustCompile(`//\s*\+(kubebuilder|optional|required|list).*[^\x00-\x7F]`), false, "gofmt turned two quotes of a marker into one of print"},
}

func TestWords(t *testing.T) {
	t.Parallel()
	for _, x := range allTexts(t) {
		if x.name == "words_test.go" || x.name == "LICENSE" {
			continue
		}
		for _, w := range words {
			if at := w.pattern.FindStringIndex(x.content); at != nil && !(w.tests && x.test()) {
				t.Errorf("%s:%d: %q: %s", x.name, 1+strings.Count(x.content[:at[0]], "\n"), x.content[at[0]:at[1]], w.why)
			}
		}
	}
}

// vague names hold whatever found no better place.
var vague = regexp.MustCompile(`^(utils?|common|helpers?|types|misc|shared|base)$`)

func TestPackageNamesMeanSomething(t *testing.T) {
	t.Parallel()
	for _, src := range allSources(t) {
		if vague.MatchString(path.Base(src.dir())) || vague.MatchString(strings.TrimSuffix(path.Base(src.name), ".go")) {
			t.Errorf("%s: the name says nothing about what is in it", src.name)
		}
	}
}

// skippers may skip a test for a reason that comes as an error: that of a kernel feature's probe.
var skippers = []string{"internal/linux/kerneltest", "internal/linux/sys"}

func TestSkipsNameAKernelFeature(t *testing.T) {
	t.Parallel()
	for _, src := range allSources(t) {
		ast.Inspect(src.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasPrefix(sel.Sel.Name, "Skip") {
				return true
			}
			if !skipNamesKernel(call, slices.Contains(skippers, src.dir())) {
				t.Errorf("%s:%d: a test is skipped only for a feature that the kernel lacks, and says which: use kerneltest.Needs", src.name, line(call))
			}
			return true
		})
	}
}

func skipNamesKernel(call *ast.CallExpr, skipper bool) bool {
	if len(call.Args) == 0 {
		return false
	}
	if err, ok := call.Args[0].(*ast.Ident); ok {
		return skipper && err.Name == "err"
	}
	text, ok := call.Args[0].(*ast.BasicLit)
	return ok && strings.Contains(text.Value, "kernel lacks ")
}

func TestTestsWaitForConditions(t *testing.T) {
	t.Parallel()
	for _, src := range allSources(t) {
		if !strings.HasSuffix(src.name, "_test.go") || slices.ContainsFunc(src.file.Imports, inBubble) {
			continue
		}
		for _, at := range sleeps(src.file) {
			t.Errorf("%s:%d sleeps: wait for a condition in a loop, or test in a bubble of testing/synctest", src.name, line(at))
		}
	}
}

// inBubble says that the clock of the file's tests is not that of the wall.
func inBubble(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }

// sleeps lists the calls of time.Sleep that are in no loop.
func sleeps(root ast.Node) []ast.Node {
	var found []ast.Node
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return false
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && n.Sel.Name == "Sleep" {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}
