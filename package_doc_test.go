// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, src := range allSources(t) {
		// The tests of a package from outside are no package of their own.
		if strings.HasSuffix(src.file.Name.Name, "_test") && src.dir() != "." {
			continue
		}
		said[src.dir()] = said[src.dir()] || saysPackage(src.file)
	}
	for dir, ok := range said {
		if !ok {
			t.Errorf("%s: no file has a comment that begins with Package or Command and its name", dir)
		}
	}
}

func saysPackage(f *ast.File) bool {
	doc := f.Doc.Text()
	return strings.HasPrefix(doc, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && strings.HasPrefix(doc, "Command ")
}

func TestExportedNamesAreExplained(t *testing.T) {
	t.Parallel()
	for _, src := range allSources(t) {
		if strings.HasSuffix(src.name, "_test.go") || src.generated() {
			continue
		}
		for _, d := range src.file.Decls {
			for _, name := range unexplained(d) {
				t.Errorf("%s:%d: %s is exported and has no comment", src.name, line(name), name.Name)
			}
		}
	}
}

// unexplained lists the exported names of a declaration that have no comment. The comment of a group stands for all
// its constants and variables.
func unexplained(d ast.Decl) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || receiver(d).IsExported()) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var names []*ast.Ident
		for _, spec := range d.Specs {
			names = append(names, unexplainedSpec(d, spec)...)
		}
		return names
	}
	return nil
}

func unexplainedSpec(d *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	var names []*ast.Ident
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() && spec.Doc == nil && (d.Doc == nil || d.Lparen != token.NoPos) {
			names = append(names, spec.Name)
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() && spec.Doc == nil && spec.Comment == nil && d.Doc == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

func receiver(d *ast.FuncDecl) *ast.Ident {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x
		default:
			return ast.NewIdent("_")
		}
	}
}
