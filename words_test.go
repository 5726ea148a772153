// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
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

// falling are words that must not be written, with better ones.
type falling struct{ pattern, instead string }

// countsFile has how often the words still stand in the files of each directory. A count may only fall.
const countsFile = "hack/words.txt"

var (
	fallingWords = []falling{
		{`anew|afresh`, "again"},
		{`whoever`, "anyone who, the process that"},
		{`tells?`, "reports whether, returns, reports"},
		{`mend|mends|mended|mending`, "repair"},
		{`for want of`, "because there is no"},
		{`heed|heeds|heeded`, "obey, use"},
		{`besides`, "also, beside"},
		{`somebody|nobody`, "another process, the user; no process"},
	}
	// fallingOpenings are beginnings of sentences, in comments of Go and in documents.
	fallingOpenings = []falling{
		{`What|Who|Whoever|Where|That|Of`, "subject, verb, object"},
	}
	// fallingNames are parts of identifiers: metaphors for which the field has a term.
	fallingNames = []falling{
		{`\bvigil|Vigil`, "watcher, monitor"},
		{`\bpatrol|Patrol`, "watcher"},
		{`\bsight|Sight`, "status, visibility"},
		{`\brestless|Restless`, "pending"},
		{`\badmit|Admit`, "acquire, report, new"},
		{`\bstreet|Street`, "what it is: connection, mount"},
		{`\bward|Ward`, "what it is: guard, watched mount"},
		{`\blookout|Lookout`, "observer"},
		{`\bkeepers|Keepers`, "holders"},
		{`\btold|Told`, "what it is: report, event, endpoint"},
		{`\b(?:un)?mend(?:able|ed)?|(?:Unm|M)end(?:able|ed)?`, "repair"},
		{`\bpatient|Patient`, "what it is: broken pod, deadline"},
		{`\btreat|Treat`, "repair"},
		{`\bdischarge|Discharge`, "check"},
		{`\bplayed|Played`, "fake"},
	}
	// fallingRelatives stand in comments of Go, within a sentence.
	fallingRelatives = []falling{{`what`, "a noun"}}
)

// TestWordsFall fails if a directory has more of the words than before. If it has fewer, it says so and passes. With KUBEDIAG_GOLDEN it
// writes the counts as they are.
func TestWordsFall(t *testing.T) {
	t.Parallel()
	counts, places := map[string]int{}, map[string][]string{}
	ofWords, ofOpenings := finder(fallingWords, `(?i)\b(?:`, `)\b`), finder(fallingOpenings, `(?m)(?:^|^\s*//|^\s*[-*>]|\.) ?(?:`, `) [a-z]`)
	// A part of a name begins it or has a capital, and ends before a capital: not that of forward.
	ofNames, ofRelatives := finder(fallingNames, `(?:`, `)s?(?:[A-Z0-9_]|\b)`), finder(fallingRelatives, `[a-z,;:(]\s*\b(?:`, `)\b`)
	for _, x := range allTexts(t) {
		if x.name == "words_test.go" || x.name == "LICENSE" || x.generated() {
			continue
		}
		for _, place := range append(ofWords(x.content), ofOpenings(x.content)...) {
			counts[x.dir()]++
			places[x.dir()] = append(places[x.dir()], x.name+place)
		}
	}
	for _, src := range allSources(t) {
		if src.name == "words_test.go" {
			continue
		}
		var names, comments strings.Builder
		ast.Inspect(src.file, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				names.WriteString(name.Name + "\n")
			}
			return true
		})
		for _, group := range src.file.Comments {
			comments.WriteString(group.Text() + "\n\n")
		}
		for _, place := range append(ofNames(names.String()), ofRelatives(comments.String())...) {
			_, word, _ := strings.Cut(place, ": ")
			counts[src.dir()]++
			places[src.dir()] = append(places[src.dir()], src.name+": "+word)
		}
	}
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		var b strings.Builder
		for _, dir := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&b, "%s: %d\n", dir, counts[dir])
		}
		must(t, os.WriteFile(countsFile, []byte(b.String()), 0o644))
	}
	text, err := os.ReadFile(countsFile)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		dir, count, _ := strings.Cut(strings.TrimSpace(line), ": ")
		left, err := strconv.Atoi(count)
		switch {
		case err != nil:
			t.Errorf("%s: %q: must be DIRECTORY: COUNT", countsFile, line)
		case counts[dir] > left:
			t.Errorf("%s: %d words that must not be written, %d before:\n%s", dir, counts[dir], left, strings.Join(places[dir], "\n"))
		case counts[dir] < left:
			t.Logf("note: lower the count of %s in %s from %d to %d", dir, countsFile, left, counts[dir])
		}
		delete(counts, dir)
	}
	for dir := range counts {
		t.Errorf("%s: words that must not be written, none before:\n%s", dir, strings.Join(places[dir], "\n"))
	}
}

// finder finds the words of a table in a text: line, word and better words.
func finder(table []falling, before, after string) func(text string) []string {
	var patterns []string
	for _, w := range table {
		patterns = append(patterns, "("+w.pattern+")")
	}
	pattern := regexp.MustCompile(before + strings.Join(patterns, "|") + after)
	return func(text string) (places []string) {
		for _, at := range pattern.FindAllStringSubmatchIndex(text, -1) {
			for i, w := range table {
				if begin := at[2*i+2]; begin >= 0 {
					places = append(places, fmt.Sprintf(":%d: %q: write %s", 1+strings.Count(text[:begin], "\n"), text[begin:at[2*i+3]], w.instead))
				}
			}
		}
		return places
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

// oldServers skips tests of features that an older API server lacks.
const oldServers = "test/apitest"

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
			if src.dir() != oldServers && !skipNamesKernel(call, slices.Contains(skippers, src.dir())) {
				t.Errorf("%s:%d: a test is skipped only for a feature that the kernel lacks, and says which: use kerneltest.Needs, or NeedRules and NeedPolicies of apitest", src.name, line(call))
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
