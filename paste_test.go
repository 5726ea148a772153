// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pasted are the programs of lines that a person is given to paste: in a runbook, by advice and by a verb.
var pasted = map[string]string{
	"kubediag": "the verb that does it",
	"kubectl":  "it asks the API server",
	"umount":   "it removes one mount, in the shell's own namespace or the kubelet's",
	"mount":    "it binds a directory, in the same",
	"mkdir":    "makes an empty directory",
	"unshare":  "it makes a namespace of its own, in which the node's programs run",
	"find":     "lists", "cat": "shows", "grep": "shows", "ls": "lists", "stat": "shows", "ps": "shows", "dmesg": "shows", "systemctl": "shows",
	"cd": "changes nothing", "echo": "ends one FUSE connection", "rm": "removes one file that is named", "rbd": "unmaps one device",
	"kill": "lets a stopped daemon run", "sh": "ends one FUSE connection", "timeout": "bounds a program of this list",
	"dev=$(cat": "keeps a number",
}

// entersKubelet is the only way in which nsenter may stand in a document: into the kubelet's mount namespace.
var entersKubelet = regexp.MustCompile("^nsenter -t (<pid of the kubelet>|[0-9]+) -m(`| (umount|find) )")

// TestDocumentsEnterOnlyTheKubelet holds that no page has a person run a program in the namespace of a container. There it would be a
// program of the container's image.
func TestDocumentsEnterOnlyTheKubelet(t *testing.T) {
	t.Parallel()
	found := 0
	for _, d := range documents(t) {
		content := strings.Join(strings.Fields(d.content), " ")
		for _, at := range regexp.MustCompile(`nsenter -`).FindAllStringIndex(content, -1) {
			found++
			if line := content[at[0]:min(len(content), at[0]+80)]; !entersKubelet.MatchString(line) {
				t.Errorf("%s: %q enters another namespace than the kubelet's", d.name, line)
			}
		}
		if regexp.MustCompile(`/proc/<pid>/root\b`).MatchString(content) {
			t.Errorf("%s: a path leads through the root of another process", d.name)
		}
	}
	if found < 8 {
		t.Errorf("found %d lines with nsenter", found)
	}
}

// TestRunbooksUseTheseProgramsAlone reads each line of the runbooks that a person may paste.
func TestRunbooksUseTheseProgramsAlone(t *testing.T) {
	t.Parallel()
	fence := regexp.MustCompile("(?s)```(\\w*)\n(.*?)```")
	quoted := regexp.MustCompile(`^(orphaned pod|E[0-9]{4}|\S+: )`) // what a log says
	used := map[string]bool{}
	for _, d := range documents(t) {
		if d.dir() != "docs/runbook" {
			continue
		}
		for _, block := range fence.FindAllStringSubmatch(d.content, -1) {
			if !slices.Contains([]string{"", "sh", "shell"}, block[1]) {
				continue
			}
			for line := range strings.Lines(block[2]) {
				for _, part := range regexp.MustCompile(`&&|\|\|?|;`).Split(strings.TrimSpace(line), -1) {
					words := strings.Fields(part)
					if len(words) == 0 || quoted.MatchString(line) {
						continue
					}
					if used[words[0]] = true; pasted[words[0]] == "" && !strings.HasPrefix(words[0], "\"") && !insideQuotes(line, part) {
						t.Errorf("%s: %q runs %s, which is not in the list", d.name, line, words[0])
					}
				}
			}
		}
	}
	for _, program := range []string{"grep", "umount", "find"} {
		if !used[program] {
			t.Errorf("no runbook uses %s: the lines are not read", program)
		}
	}
}

// insideQuotes reports whether a part begins inside of quotes: it is a word, not a program.
func insideQuotes(line, part string) bool {
	before, _, _ := strings.Cut(line, strings.TrimSpace(part))
	return strings.Count(before, "'")%2 == 1 || strings.Count(before, `"`)%2 == 1
}

// TestProgramsPrintTheseLinesAlone reads each command that a program can print. Lines about findings are read as a whole, with every
// finding, by TestEveryPrintedLine of internal/fault.
func TestProgramsPrintTheseLinesAlone(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, x := range allSources(t) {
		if x.test() || !strings.HasPrefix(x.name, "internal/") && !strings.HasPrefix(x.name, "cmd/") {
			continue
		}
		ast.Inspect(x.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(n.Value, "nsenter") && x.name != "internal/fault/remedy.go" {
					t.Errorf("%s has nsenter in %s: internal/fault/remedy.go alone enters a namespace", x.name, n.Value)
				}
				if line := literalOf(n); changesMounts.MatchString(line) && path.Dir(x.name) != "internal/fault" {
					t.Errorf("%s has %q: a line that changes the node is a fault.Command alone, as other texts are cut", x.name, line)
				}
			case *ast.CompositeLit:
				line := lineOf(n)
				if line == "" {
					return true
				}
				commands++
				if program, _, _ := strings.Cut(line, " "); pasted[program] == "" && path.Base(x.name) != "remedy.go" {
					t.Errorf("%s prints %q, whose program is not in the list", x.name, line)
				}
			case *ast.CallExpr:
				line := printedBy(n)
				if line == "" {
					return true
				}
				commands++
				if program, _, _ := strings.Cut(line, " "); pasted[program] == "" {
					t.Errorf("%s prints %q, whose program is not in the list", x.name, line)
				}
			}
			return true
		})
	}
	if commands < 25 {
		t.Errorf("found %d commands", commands)
	}
}

// askedOf are the verbs of programs outside of kubediag that a text may name, wherever it is printed: by advice, the plugin's doctor, a gap of a scan, an
// Event, a page, an alert or the notes of the chart. Those that change something are for a person who administers the cluster.
var askedOf = map[string]string{
	"kubectl": "kubediag get describe logs rollout apply debug edit delete set create label patch support-bundle",
	"helm":    "upgrade install template test", "crictl": "info", "systemctl": "status",
	"ctr": "", "docker": "", "podman": "", "curl": "", "wget": "", "bash": "",
}

// called is a program in a text, with the words after it.
var called = regexp.MustCompile(`(?:^|[\s;|&("` + "`" + `$])(kubectl|helm|crictl|systemctl|ctr|docker|podman|curl|wget|bash) ([^"` + "`" + `\n]*)`)

// verbsIn are the programs in a text, each with its verb: the first word after it that is no flag, nor the value of one.
func verbsIn(text string) (all [][2]string) {
	for _, m := range called.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[2])
		for len(words) > 0 && strings.HasPrefix(words[0], "-") {
			takes := slices.Contains([]string{"-n", "--runtime-endpoint"}, words[0])
			if words = words[1:]; takes && len(words) > 0 {
				if words = words[1:]; len(words) > 2 && words[0] == "." { // {{ .Release.Namespace }}
					words = words[2:]
				}
			}
		}
		if verb := strings.Trim(strings.Join(words[:min(1, len(words))], ""), ".,:;)'"); verb != "" {
			all = append(all, [2]string{m[1], verb})
		}
	}
	return all
}

// TestTextsNameTheseCommandsAlone reads each text of the programs, of the pages, of the chart and of the manifests, and not those of known functions or
// types alone: a command that a new part prints is read, too.
func TestTextsNameTheseCommandsAlone(t *testing.T) {
	t.Parallel()
	found := map[string]int{}
	check := func(where, text string) {
		for _, of := range verbsIn(regexp.MustCompile(`\{\{[^}]*\}\}`).ReplaceAllString(text, "x")) {
			if found[of[0]]++; !slices.Contains(strings.Fields(askedOf[of[0]]), of[1]) {
				t.Errorf("%s names %s %s, which is not in the list", where, of[0], of[1])
			}
		}
	}
	for _, x := range allSources(t) {
		if x.test() || x.generated() || !strings.HasPrefix(x.name, "internal/") && !strings.HasPrefix(x.name, "cmd/") && !strings.HasPrefix(x.name, "api/") {
			continue
		}
		ast.Inspect(x.file, func(n ast.Node) bool {
			if of, ok := n.(*ast.BasicLit); ok && of.Kind == token.STRING {
				text, _ := strconv.Unquote(of.Value)
				check(x.name, text)
			}
			return true
		})
	}
	for _, x := range allTexts(t) {
		if slices.Contains([]string{".yaml", ".html", ".txt", ".tpl", ".json", ".js"}, path.Ext(x.name)) && regexp.MustCompile(`^(config|charts|internal/ui)/`).MatchString(x.name) {
			check(x.name, regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(x.content, ""))
		}
	}
	if found["kubectl"] < 60 || found["helm"] == 0 || found["systemctl"] == 0 {
		t.Errorf("found %v", found)
	}
}

// changesMounts is a text that ends with a line to paste, which lacks its last words, and that changes something on the node.
var changesMounts = regexp.MustCompile(`(^|[ :;])(umount|rm|rmdir|kill|unmap|unshare|nsenter)( -\S*)+ (%[qsd])?$`)

// nameOf is the last name of a function.
func nameOf(e ast.Expr) string {
	switch of := e.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.SelectorExpr:
		return of.Sel.Name
	}
	return ""
}

// printedBy is the beginning of the line that a call is given, as far as it is written there: of a verb on the node, or in an Event.
func printedBy(call *ast.CallExpr) string {
	args := call.Args
	switch name := nameOf(call.Fun); {
	case name == "commandLine" && len(args) == 1 && strings.HasPrefix(literalOf(args[0]), "kubediag"): // the plugin's has the words after its name
		return literalOf(args[0])
	case (name == "EventAdvice" || name == "EventMessage") && len(args) == 2:
		return literalOf(args[1])
	}
	return ""
}

// literalOf is the text with which a sum, or the format of a call of Sprintf, begins; empty if a variable comes first.
func literalOf(e ast.Expr) string {
	for {
		switch of := e.(type) {
		case *ast.BinaryExpr:
			e = of.X
			continue
		case *ast.CallExpr:
			if nameOf(of.Fun) == "Sprintf" {
				e = of.Args[0]
				continue
			}
		case *ast.BasicLit:
			if of.Kind == token.STRING {
				value, _ := strconv.Unquote(of.Value)
				return value
			}
		}
		return ""
	}
}

// lineOf is the beginning of the line of a fault.Command.
func lineOf(n *ast.CompositeLit) string {
	if nameOf(n.Type) != "Command" {
		return ""
	}
	var line ast.Expr
	for i, e := range n.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Line" {
				line = pair.Value
			}
		} else if i == 1 {
			line = e
		}
	}
	return literalOf(line)
}
