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

// count is how often a word stands in the code of the product and its tools, in tests, and in documents.
type count struct{ code, tests, docs int }

// add counts a word of a file.
func (c *count) add(x text) {
	switch {
	case path.Ext(x.name) == ".md":
		c.docs++
	case x.test():
		c.tests++
	default:
		c.code++
	}
}

// sinking is a word that must not be written, with how often it still stands.
type sinking struct {
	pattern string
	left    count
	instead string
}

var (
	sinkingWords = []sinking{
		{`anew|afresh`, count{0, 0, 0}, "again"},
		{`whoever`, count{0, 0, 0}, "anyone who, the process that"},
		{`tells?`, count{0, 1, 0}, "reports whether, returns, reports"},
		{`mend|mends|mended|mending`, count{0, 0, 0}, "repair"},
		{`for want of`, count{0, 0, 0}, "because there is no"},
		{`heed|heeds|heeded`, count{0, 0, 0}, "obey, use"},
		{`besides`, count{0, 0, 0}, "also, beside"},
		{`somebody|nobody`, count{0, 61, 0}, "another process, the user; no process"},
	}
	// sinkingOpenings are beginnings of sentences, in comments of Go and in documents.
	sinkingOpenings = []sinking{
		{`What|Who|Whoever|Where|That|Of`, count{2, 0, 0}, "subject, verb, object"},
	}
	// sinkingNames are parts of identifiers: metaphors for which the field has a term.
	sinkingNames = []sinking{
		{`\bvigil|Vigil`, count{0, 0, 0}, "watcher, monitor"},
		{`\bpatrol|Patrol`, count{0, 0, 0}, "watcher"},
		{`\bsight|Sight`, count{0, 0, 0}, "status, visibility"},
		{`\brestless|Restless`, count{0, 0, 0}, "pending"},
		{`\badmit|Admit`, count{0, 0, 0}, "acquire, report, new"},
		{`\bstreet|Street`, count{0, 0, 0}, "what it is: connection, mount"},
		{`\bward|Ward`, count{0, 0, 0}, "what it is: guard, watched mount"},
		{`\blookout|Lookout`, count{0, 0, 0}, "observer"},
		{`\bkeepers|Keepers`, count{0, 0, 0}, "holders"},
		{`\btold|Told`, count{0, 0, 0}, "what it is: report, event, endpoint"},
		{`\b(?:un)?mend(?:able|ed)?|(?:Unm|M)end(?:able|ed)?`, count{0, 0, 0}, "repair"},
		{`\bpatient|Patient`, count{0, 0, 0}, "what it is: broken pod, deadline"},
		{`\btreat|Treat`, count{0, 0, 0}, "repair"},
		{`\bdischarge|Discharge`, count{0, 0, 0}, "check"},
		{`\bplayed|Played`, count{0, 0, 0}, "fake"},
	}
)

func TestWordsSink(t *testing.T) {
	t.Parallel()
	var all []text
	for _, x := range allTexts(t) {
		if x.name != "words_test.go" && x.name != "LICENSE" && !x.generated() {
			all = append(all, x)
		}
	}
	checkSinks(t, all, sinkingWords, `(?i)\b(?:`, `)\b`)
	checkSinks(t, all, sinkingOpenings, `(?m)(?:^|^\s*//|^\s*[-*>]|\.) ?(?:`, `) [a-z]`)
}

func TestNamesSink(t *testing.T) {
	t.Parallel()
	var all []text
	for _, src := range allSources(t) {
		var names strings.Builder
		ast.Inspect(src.file, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				names.WriteString(name.Name + "\n")
			}
			return true
		})
		all = append(all, text{src.name, names.String()})
	}
	// A part begins a name or has a capital, and ends before a capital: not that of forward.
	checkSinks(t, all, sinkingNames, `(?:`, `)s?(?:[A-Z0-9_]|\b)`)
}

// checkSinks fails if there are more of the words than are left, and if there are fewer: the table sinks with them.
func checkSinks(t *testing.T, all []text, table []sinking, before, after string) {
	t.Helper()
	var patterns []string
	for _, w := range table {
		patterns = append(patterns, "("+w.pattern+")")
	}
	pattern := regexp.MustCompile(before + strings.Join(patterns, "|") + after)
	found := make([]count, len(table))
	for _, x := range all {
		for _, match := range pattern.FindAllStringSubmatchIndex(x.content, -1) {
			for i := range table {
				if match[2*(i+1)] >= 0 {
					found[i].add(x)
				}
			}
		}
	}
	for i, w := range table {
		got := found[i]
		switch {
		case got.code > w.left.code || got.tests > w.left.tests || got.docs > w.left.docs:
			t.Errorf("%s: %+v, at most %+v: write %s", w.pattern, got, w.left, w.instead)
		case got != w.left:
			t.Errorf("%s: %+v: sink the table, which allows %+v", w.pattern, got, w.left)
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
