// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/policy"
)

// documents are the pages that people read.
func documents(t *testing.T) []text {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(allTexts(t)), func(x text) bool { return path.Ext(x.name) != ".md" })
}

// spec is the text of all pages about the API.
func spec(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, d := range documents(t) {
		if d.dir() == "docs/spec" {
			b.WriteString(d.content)
		}
	}
	return b.String()
}

func TestEveryFaultHasARunbook(t *testing.T) {
	t.Parallel()
	var want []string
	for _, e := range fault.Known() {
		want = append(want, "docs/runbook/"+string(e.Code)+".md")
	}
	var got []string
	for _, d := range documents(t) {
		if d.dir() == "docs/runbook" && path.Base(d.name) != "README.md" && !strings.HasSuffix(d.name, ".zh-CN.md") {
			got = append(got, d.name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("runbook pages (-catalogue +files):\n%s", diff)
	}
}

// ours begins a line of a code block that calls one of our programs.
var (
	ours      = regexp.MustCompile(`^\s*(sudo )?(bin/)?(kubediag|kubectl kubediag|manager|agent)\b`)
	flagName  = regexp.MustCompile(`--([a-z][a-z0-9-]+)`)
	flagCode  = regexp.MustCompile("`--([a-z][a-z0-9-]+)")
	makeGoals = regexp.MustCompile(`\bmake ([a-z]+(-[a-z]+)*)\b`)
)

func TestFlagsInDocumentsExist(t *testing.T) {
	t.Parallel()
	known := flagsOfCode(t)
	for _, d := range documents(t) {
		mentioned := flagCode.FindAllStringSubmatch(d.content, -1)
		for l := range strings.Lines(d.content) {
			if ours.MatchString(l) {
				mentioned = append(mentioned, flagName.FindAllStringSubmatch(l, -1)...)
			}
		}
		for _, m := range mentioned {
			if !known[m[1]] {
				t.Errorf("%s: no program has the flag --%s", d.name, m[1])
			}
		}
	}
}

// flagsOfCode are the names in calls such as f.StringVar(&o.Root, "root", ...).
func flagsOfCode(t *testing.T) map[string]bool {
	t.Helper()
	define := regexp.MustCompile(`^(String|StringSlice|StringToString|Bool|Int|Int32|Duration|Var)(Array|Slice)?(Var)?P?$`)
	known := map[string]bool{"help": true}
	for _, src := range allSources(t) {
		if src.test() {
			continue
		}
		ast.Inspect(src.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || !define.MatchString(sel.Sel.Name) {
				return true
			}
			i := slices.IndexFunc(call.Args, isString)
			if i >= 0 {
				name, _ := strconv.Unquote(call.Args[i].(*ast.BasicLit).Value)
				known[name] = true
			}
			return true
		})
	}
	return known
}

func isString(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING
}

func TestMakeTargetsInDocumentsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("Makefile")
	must(t, err)
	for _, d := range documents(t) {
		for _, code := range regexp.MustCompile("(?s)```.*?```|`[^`\n]+`").FindAllString(d.content, -1) {
			for _, m := range makeGoals.FindAllStringSubmatch(code, -1) {
				if !regexp.MustCompile(`(?m)^` + m[1] + `:.* ## `).Match(makefile) {
					t.Errorf("%s: make has no target %s", d.name, m[1])
				}
			}
		}
	}
}

func TestTestsInDocumentsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, src := range allSources(t) {
		for _, d := range src.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && src.test() && fn.Recv == nil {
				known[fn.Name.Name] = true
			}
		}
	}
	named := regexp.MustCompile("`((Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9]*)`")
	for _, d := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(d.content, -1) {
			if !known[m[1]] {
				t.Errorf("%s: there is no test %s", d.name, m[1])
			}
		}
	}
}

func TestLinksInDocumentsLead(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	for _, d := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(d.content, -1) {
			if _, err := os.Stat(path.Join(d.dir(), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", d.name, m[1], err)
			}
		}
	}
}

// TestTranslationsShowTheSame fails if a Chinese page has no English one, and only warns if it is behind: not everyone writes Chinese.
func TestTranslationsShowTheSame(t *testing.T) {
	t.Parallel()
	blocks := func(name string) []string {
		content, err := os.ReadFile(name)
		must(t, err)
		return regexp.MustCompile("(?s)```.*?```|(?m)^#+ ").FindAllString(string(content), -1)
	}
	for _, d := range documents(t) {
		english, translated := strings.CutSuffix(d.name, ".zh-CN.md")
		if !translated {
			continue
		}
		if diff := cmp.Diff(blocks(english+".md"), blocks(d.name)); diff != "" {
			t.Logf("warning: %s is behind: headings and code (-English +Chinese):\n%s", d.name, diff)
		}
	}
}

func TestSpecNamesEveryFieldAndReason(t *testing.T) {
	t.Parallel()
	pages := spec(t)
	said := func(word string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`).MatchString(pages)
	}
	for _, src := range allSources(t) {
		api := src.dir() == "api/v1"
		if !api && !strings.HasPrefix(src.name, "internal/") || src.test() || src.generated() {
			continue
		}
		ast.Inspect(src.file, func(n ast.Node) bool {
			for _, word := range promises(n, api) {
				if !said(word) {
					t.Errorf("docs/spec does not speak of %s (%s:%d)", word, src.name, line(n))
				}
			}
			return true
		})
	}
}

// promises are what users may see of a declaration: a field's name in JSON, the value of a constant that is a string.
// Outside of the API they see reasons, and the keys of results and parameters.
func promises(n ast.Node, api bool) []string {
	switch n := n.(type) {
	case *ast.Field:
		if api && n.Tag != nil {
			tag, _ := strconv.Unquote(n.Tag.Value)
			if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" && name != "-" && name != "items" {
				return []string{name}
			}
		}
	case *ast.ValueSpec:
		shown := api && n.Names[0].IsExported() || regexp.MustCompile(`^(Key|Param|Reason)[A-Z]`).MatchString(n.Names[0].Name)
		if len(n.Values) == 1 && shown && isString(n.Values[0]) {
			value, _ := strconv.Unquote(n.Values[0].(*ast.BasicLit).Value)
			return []string{strings.Trim(value, "/-")}
		}
	}
	return nil
}

func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for _, d := range documents(t) {
		for _, m := range block.FindAllStringSubmatch(d.content, -1) {
			for doc, err := range manifests.Documents([]byte(m[1])) {
				if err != nil {
					t.Errorf("%s: %v", d.name, err)
				}
				checkExample(t, d.name, string(doc.Text))
			}
		}
	}
}

// checkExample reads an object of ours as strictly as an API server reads it, and checks it as a controller does.
func checkExample(t *testing.T, name, doc string) {
	t.Helper()
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
		t.Errorf("%s: %v\n%s", name, err, doc)
	}
	if kind.APIVersion != v1.GroupVersion.String() {
		return
	}
	var err error
	switch kind.Kind {
	case "Operation":
		err = checkSpec(doc, &v1.Operation{}, func(o *v1.Operation) error {
			_, errs := o.Spec.Call()
			return errs.ToAggregate()
		})
	case "OperationSet":
		err = checkSpec(doc, &v1.OperationSet{}, func(s *v1.OperationSet) error {
			var nodes []graph.Node
			for _, n := range s.Spec.AdjacencyList {
				nodes = append(nodes, graph.Node{ID: n.ID, To: n.To, Operation: n.Operation})
			}
			_, err := graph.New(nodes)
			return err
		})
	case "Diagnosis":
		err = checkSpec(doc, &v1.Diagnosis{}, func(d *v1.Diagnosis) error { return d.Spec.Validate().ToAggregate() })
	case "Trigger":
		err = checkSpec(doc, &v1.Trigger{}, func(tr *v1.Trigger) error { return tr.Spec.Validate().ToAggregate() })
	case "RecoveryPolicy":
		err = checkSpec(doc, &v1.RecoveryPolicy{}, func(p *v1.RecoveryPolicy) error { return policy.Compile(p, fault.Known()).Problems.ToAggregate() })
	case "MountFault":
		err = checkSpec(doc, &v1.MountFault{}, func(*v1.MountFault) error { return nil })
	case "RecoveryApproval":
		err = checkSpec(doc, &v1.RecoveryApproval{}, func(*v1.RecoveryApproval) error { return nil })
	default:
		t.Errorf("%s: there is no kind %q", name, kind.Kind)
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, doc)
	}
}

func checkSpec[T any](doc string, into T, check func(T) error) error {
	if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
		return err
	}
	return check(into)
}
