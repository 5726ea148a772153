// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sharesFile says of each bound who shares it.
const sharesFile = "hack/shares.txt"

// sharers are those who can share a bound. Each has a part of it that no other of its kind can use up, or it bounds one of them alone.
var sharers = map[string]string{
	"namespace": "namespaces of Kubernetes", "pod": "pods, and the namespaces that they make", "node": "nodes", "address": "addresses of the network",
	"user": "users of the API server", "process": "processes of a node, or their mount namespaces", "device": "block devices",
	"object": "one object of the API, and its author", "value": "one text, file, table or message, however many there are",
	"caller": "one run of a command or of a test, which its user starts", "all": "all: the reason follows",
}

// bound is the name of a bound: that of a constant, a variable or a field whose name begins with max or limit, or says how many there are at once, for
// each other thing, in a page or in a burst, or ends with limit, or that of a number in a type of limits; or it is that of a constant by which a
// length is bounded. A channel, a limiter, and a
// length that is bounded by a plain number have that of their function.
type bound struct{ dir, name string }

func (b bound) String() string { return b.dir + " " + b.name }

var boundName = regexp.MustCompile(`^([mM]ax|[lL]imit|[mM]ost|[aA]tMost)[A-Z]|^(limit|most)$|AtOnce$|[a-z]Per[A-Z]|Page$|^(page|batch|window|queue|ring|cache|list)Size$|[bB]urst$|` +
	`[a-z](Limit|Capacity|Quota|AtMost)$`)

// sharing are the packages that divide a bound among namespaces.
var sharing = []string{`"kubediag.org/kubediag/internal/share"`, `"kubediag.org/kubediag/internal/fairqueue"`}

// bounds finds each bound of the programs, and reports of a work queue whether owners take turns in it: its function gives it a queue or a store
// of the two packages that have such. shares are the directories whose package uses one of these.
func bounds(t *testing.T) (found, inTurns map[bound]bool, shares map[string]bool) {
	t.Helper()
	found, inTurns, shares = map[bound]bool{}, map[bound]bool{}, map[string]bool{"internal/share": true}
	constants := numbers(t)
	for _, x := range allSources(t) {
		if x.test() || x.generated() || !strings.HasPrefix(x.name, "internal/") && !strings.HasPrefix(x.name, "api/") && !strings.HasPrefix(x.name, "cmd/") {
			continue
		}
		add := func(names ...*ast.Ident) {
			for _, name := range names {
				if boundName.MatchString(name.Name) {
					found[bound{path.Dir(x.name), name.Name}] = true
				}
			}
		}
		addLimits := func(file, function string, limits []ast.Expr) {
			for _, limit := range limits {
				if name := limitName(limit, path.Dir(file), function, constants); name != "" {
					found[bound{path.Dir(file), name}] = true
				}
			}
		}
		for _, spec := range x.file.Imports {
			shares[path.Dir(x.name)] = shares[path.Dir(x.name)] || slices.Contains(sharing, spec.Path.Value)
		}
		function := ""
		ast.Inspect(x.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				function = n.Name.Name
			case *ast.ValueSpec:
				add(n.Names...)
			case *ast.BinaryExpr, *ast.SliceExpr:
				addLimits(x.name, function, limitsOf(n))
			case *ast.TypeSpec:
				for _, name := range numbersOfLimits(n) {
					found[bound{path.Dir(x.name), name.Name}] = true
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					add(field.Names...)
				}
			case *ast.CallExpr:
				addLimits(x.name, function, limitsOf(n))
				if what := queueOf(n); what != "" {
					found[bound{path.Dir(x.name), what + " in " + function}] = true
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "NewQueue" || key.Name == "Queue") && givesTurns(n.Value) {
					inTurns[bound{path.Dir(x.name), "queue in " + function}] = true
				}
			}
			return true
		})
	}
	return found, inTurns, shares
}

// numbersOfLimits are the fields of a type of limits that are numbers, by whatever name.
func numbersOfLimits(of *ast.TypeSpec) (names []*ast.Ident) {
	fields, ok := of.Type.(*ast.StructType)
	if !ok || !strings.HasSuffix(strings.ToLower(of.Name.Name), "limits") {
		return nil
	}
	for _, field := range fields.Fields.List {
		if kind, ok := field.Type.(*ast.Ident); ok && strings.HasPrefix(kind.Name, "int") {
			names = append(names, field.Names...)
		}
	}
	return names
}

// givesTurns reports whether an expression calls fairqueue or share, or is the store that fairqueue.New is given.
func givesTurns(value ast.Expr) (turns bool) {
	ast.Inspect(value, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			of, _ := n.X.(*ast.Ident)
			turns = turns || of != nil && (of.Name == "fairqueue" || of.Name == "share" && n.Sel.Name == "NewStore")
		case *ast.Ident:
			turns = turns || n == value && n.Name == "store"
		}
		return true
	})
	return turns
}

// limitsOf are the numbers by which an expression bounds a list or a text: that with which a length is compared or of which the smaller one
// is taken, and the end of a part.
func limitsOf(n ast.Node) []ast.Expr {
	isLength := func(x ast.Expr) bool {
		call, ok := x.(*ast.CallExpr)
		return ok && nameOf(call.Fun) == "len"
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		switch {
		case !slices.Contains([]token.Token{token.GTR, token.GEQ, token.LSS, token.LEQ, token.EQL}, n.Op):
		case isLength(n.X):
			return []ast.Expr{n.Y}
		case isLength(n.Y):
			return []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if nameOf(n.Fun) == "min" && slices.ContainsFunc(n.Args, isLength) {
			return n.Args
		}
	case *ast.SliceExpr:
		if n.High != nil {
			return []ast.Expr{n.High}
		}
	}
	return nil
}

// limitName names a limit: a constant by its name, and a plain number that is more than a few by its function. Empty: it is neither.
func limitName(limit ast.Expr, dir, function string, constants map[bound]bool) string {
	switch limit := limit.(type) {
	case *ast.BasicLit:
		if limit.Kind == token.INT && len(limit.Value) > 2 {
			return "length in " + function
		}
	case *ast.Ident:
		if constants[bound{dir, limit.Name}] || constants[bound{dir, function + " " + limit.Name}] {
			return limit.Name
		}
	}
	return ""
}

// numbers are the constants of each package that are numbers. Those of a function have its name in front.
func numbers(t *testing.T) map[bound]bool {
	t.Helper()
	found := map[bound]bool{}
	for _, x := range allSources(t) {
		if x.test() {
			continue
		}
		for _, decl := range x.file.Decls {
			within := ""
			if function, ok := decl.(*ast.FuncDecl); ok {
				within = function.Name.Name + " "
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if group, ok := n.(*ast.GenDecl); ok && group.Tok == token.CONST {
					for _, spec := range group.Specs {
						addNumbers(found, path.Dir(x.name), within, spec.(*ast.ValueSpec))
					}
				}
				return true
			})
		}
	}
	return found
}

func addNumbers(found map[bound]bool, dir, within string, spec *ast.ValueSpec) {
	for i, name := range spec.Names {
		if i < len(spec.Values) && isNumber(spec.Values[i]) {
			found[bound{dir, within + name.Name}] = true
		}
	}
}

// isNumber reports whether an expression has only numbers.
func isNumber(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.BasicLit:
		return x.Kind == token.INT
	case *ast.ParenExpr:
		return isNumber(x.X)
	case *ast.BinaryExpr:
		return isNumber(x.X) && isNumber(x.Y)
	}
	return false
}

// queueOf names the kind of queue that a call makes: a channel with room for more than one, a limiter, or the work queue of client-go or of
// a controller. Empty: none.
func queueOf(call *ast.CallExpr) string {
	switch of := call.Fun.(type) {
	case *ast.Ident:
		if of.Name != "make" || len(call.Args) != 2 {
			return ""
		}
		if _, ok := call.Args[0].(*ast.ChanType); !ok {
			return ""
		}
		if size, ok := call.Args[1].(*ast.BasicLit); ok && size.Kind == token.INT && (size.Value == "0" || size.Value == "1") {
			return ""
		}
		return "channel"
	case *ast.SelectorExpr:
		from, _ := of.X.(*ast.Ident)
		switch of.Sel.Name {
		case "SetLimit", "NewWeighted", "NewTokenBucketRateLimiter", "NewLRU":
			return "limiter"
		case "NewLimiter":
			if from != nil && from.Name == "rate" { // another one is made of these, or is a share.Bucket
				return "limiter"
			}
		case "NewTypedWithConfig", "ControllerManagedBy":
			return "queue"
		case "New", "NewTyped", "NewUnmanaged", "NewTypedUnmanaged":
			if from != nil && from.Name == "controller" {
				return "queue"
			}
		}
	}
	return ""
}

// TestEveryBoundNamesItsShare holds that each bound of the programs stands in the file with those who share it, and that the file has no others.
// A new field, queue or list that is bounded cannot be written without an answer to who can use it up for whom. A work queue in which owners do
// not take turns cannot be said to be shared, nor a bound among namespaces whose package divides nothing. A bound among others than tenants says why
// no type of internal/share divides it.
func TestEveryBoundNamesItsShare(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(sharesFile)
	must(t, err)
	found, inTurns, shares := bounds(t)
	listed := map[bound]bool{}
	dir, last := "", bound{}
	for n, line := range strings.Split(string(text), "\n") {
		at := fmt.Sprintf("%s:%d", sharesFile, n+1)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case !strings.HasPrefix(line, " "):
			dir = strings.TrimSuffix(line, ":")
			continue
		}
		name, share, _ := strings.Cut(strings.TrimSpace(line), ": ")
		row := bound{dir, name}
		kind, reason, _ := strings.Cut(share, ", ")
		switch {
		case !found[row]:
			t.Errorf("%s: there is no bound %s", at, row)
		case listed[row]:
			t.Errorf("%s: %s stands there twice", at, row)
		case sharers[kind] == "":
			t.Errorf("%s: %q shares nothing: who shares %s?", at, kind, row)
		case strings.HasPrefix(name, "queue in ") && inTurns[row] != (kind != "all"):
			t.Errorf("%s: %s says %q of %s, and owners take turns in it: %v", at, sharesFile, kind, row, inTurns[row])
		case kind == "namespace" && !shares[dir]:
			t.Errorf("%s: namespaces cannot share %s: package %s uses neither internal/share nor internal/fairqueue", at, row, dir)
		case (kind == "address" || kind == "user") && len(strings.Fields(reason)) < 5:
			t.Errorf("%s: a reason is missing why no type of internal/share divides %s, as it does among namespaces", at, row)
		case kind == "all" && len(strings.Fields(reason)) < 3:
			t.Errorf("%s: a reason is missing why all share %s", at, row)
		case row.String() < last.String():
			t.Errorf("%s: %s is not in order", at, row)
		}
		listed[row], last = true, row
	}
	for row := range found {
		if !listed[row] {
			t.Errorf("%s has no row for %s: who shares it? One of namespace, pod, node, address, user, process, device, object, value, caller, all", sharesFile, row)
		}
	}
	if len(found) < 200 {
		t.Errorf("found %d bounds", len(found))
	}
}
