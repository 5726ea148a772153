// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
)

// code holds the figures of the Go files of one area.
type code struct {
	lines, files  int
	functionLines []int           // of each function
	mainNames     []int           // length of each name of a function, method or type
	allNames      []int           // length of each name that is declared
	packages      map[string]bool // by folder
	declaredBy    map[string]map[string]bool
	comments      prose
}

func newCode() *code {
	return &code{
		packages: map[string]bool{}, declaredBy: map[string]map[string]bool{},
	}
}

// addFile measures a file unless it is generated; relative is its name from the top of the tree.
func (c *code) addFile(relative string, content []byte) error {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, relative, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return err
	}
	folder := path.Dir(relative)
	c.files++
	c.lines += bytes.Count(content, []byte("\n"))
	c.packages[folder] = true
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			c.functionLines = append(c.functionLines, positions.Position(d.End()).Line-positions.Position(d.Pos()).Line+1)
			c.addFunction(folder, d)
		case *ast.GenDecl:
			c.addDeclared(folder, d)
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		c.addNode(node)
		return true
	})
	for _, group := range file.Comments {
		if text := group.Text(); !strings.Contains(text, "SPDX-") && !strings.Contains(text, "Copyright") {
			c.comments.addText(text)
		}
	}
	return nil
}

func (c *code) addFunction(folder string, function *ast.FuncDecl) {
	c.mainNames = append(c.mainNames, len(function.Name.Name))
	if function.Name.Name != "main" && function.Name.Name != "init" {
		c.addShared(folder, function.Name)
	}
}

func (c *code) addDeclared(folder string, declaration *ast.GenDecl) {
	for _, spec := range declaration.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			c.mainNames = append(c.mainNames, len(s.Name.Name))
			c.addShared(folder, s.Name)
		case *ast.ValueSpec:
			for _, name := range s.Names {
				c.addShared(folder, name)
			}
		}
	}
}

// addShared notes which package declares the name.
func (c *code) addShared(folder string, name *ast.Ident) {
	if name.Name == "_" || name.IsExported() {
		return
	}
	if c.declaredBy[name.Name] == nil {
		c.declaredBy[name.Name] = map[string]bool{}
	}
	c.declaredBy[name.Name][folder] = true
}

// addNode counts the names that a node declares.
func (c *code) addNode(node ast.Node) {
	switch n := node.(type) {
	case *ast.FuncDecl:
		c.addNames(n.Name)
	case *ast.TypeSpec:
		c.addNames(n.Name)
	case *ast.ValueSpec:
		c.addNames(n.Names...)
	case *ast.Field:
		c.addNames(n.Names...)
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			c.addAssigned(n.Lhs...)
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			c.addAssigned(n.Key, n.Value)
		}
	}
}

func (c *code) addAssigned(left ...ast.Expr) {
	for _, expression := range left {
		if name, ok := expression.(*ast.Ident); ok {
			c.addNames(name)
		}
	}
}

func (c *code) addNames(names ...*ast.Ident) {
	for _, name := range names {
		if name.Name != "_" {
			c.allNames = append(c.allNames, len(name.Name))
		}
	}
}

func typeName(folder, name string) string { return strings.TrimPrefix(folder+"."+name, "..") }

// baseType is the name of a receiver's type, without its pointer and its type parameters.
func baseType(receiver ast.Expr) string {
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.ParenExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name
		default:
			return ""
		}
	}
}
