// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// usage holds the figures of the product that need the meaning of names, as a compiler for Linux has it.
type usage struct {
	functions int
	// usedOnce are the unexported functions that the program names in one place, by their folder and name, with the length
	// of the longest chain of such functions that begins there. Rows of tables are left out.
	usedOnce map[string]int
	// chains are those of usedOnce that no other of them calls, if the chain has at least minChain functions.
	chains map[string]int
	// flattened is how many fields each struct has, with those that it gets by embedding; depth is how deep it embeds.
	flattened, depth map[string]int
	// methods are those of each type, with those that it gets by embedding.
	methods map[string]int
}

// minChain is the least length of a chain that is counted: a decision is spread over so many functions.
const minChain = 3

// checker type-checks the packages of one module, each once. Packages of other modules are empty, and so are the types
// that come from them: one field each.
type checker struct {
	folder, module string
	files          *token.FileSet
	packages       map[string]*types.Package
	info           types.Info
	syntax         map[string][]*ast.File // by folder
}

// measureUsage type-checks the product below the folder.
func measureUsage(folder string) (*usage, error) {
	c := &checker{
		folder: folder, module: modulePath(folder), files: token.NewFileSet(), packages: map[string]*types.Package{},
		info:   types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}},
		syntax: map[string][]*ast.File{},
	}
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() {
			return c.parse(file)
		}
		if file != folder && (isSkipped(entry.Name()) || isModule(file)) {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for relative := range c.syntax {
		if _, err := c.Import(path.Join(c.module, relative)); err != nil {
			return nil, err
		}
	}
	u := &usage{usedOnce: map[string]int{}, chains: map[string]int{}, flattened: map[string]int{}, depth: map[string]int{}, methods: map[string]int{}}
	u.addFunctions(c)
	u.addTypes(c)
	return u, nil
}

// modulePath is the path of the module in the folder, or "tree" if there is none.
func modulePath(folder string) string {
	content, _ := os.ReadFile(filepath.Join(folder, "go.mod"))
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name)
		}
	}
	return "tree"
}

func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// parse takes in a file of the product that is compiled for Linux.
func (c *checker) parse(file string) error {
	relative, err := filepath.Rel(c.folder, file)
	if err != nil {
		return err
	}
	relative = filepath.ToSlash(relative)
	if path.Ext(relative) != ".go" || areaOf(relative) != product {
		return nil
	}
	platform := build.Default
	platform.GOOS, platform.CgoEnabled = "linux", false
	if built, err := platform.MatchFile(filepath.Split(file)); err != nil || !built {
		return err
	}
	parsed, err := parser.ParseFile(c.files, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	c.syntax[path.Dir(relative)] = append(c.syntax[path.Dir(relative)], parsed)
	return nil
}

// Import makes the checker an importer of types.
func (c *checker) Import(name string) (*types.Package, error) {
	if name == "unsafe" {
		return types.Unsafe, nil
	}
	if known, ok := c.packages[name]; ok {
		return known, nil
	}
	relative, ours := strings.CutPrefix(name+"/", c.module+"/")
	relative = path.Clean("./" + relative)
	if !ours || c.syntax[relative] == nil {
		other := types.NewPackage(name, path.Base(name))
		other.MarkComplete()
		c.packages[name] = other
		return other, nil
	}
	config := types.Config{Importer: c, Error: func(error) {}} // names of other modules are unknown
	checked, err := config.Check(name, c.files, c.syntax[relative], &c.info)
	if _, expected := errors.AsType[types.Error](err); err != nil && !expected {
		return nil, err
	}
	c.packages[name] = checked
	return checked, nil
}

// callGraph says of functions how often they are named, by which function last, and the names of the unexported ones.
type callGraph struct {
	uses   map[types.Object]int
	caller map[types.Object]types.Object
	names  map[types.Object]string
}

// addName notes the name of a function, unless callers that are not seen may name it.
func (g *callGraph) addName(object types.Object, folder string, f *ast.FuncDecl) {
	name := f.Name.Name
	if f.Name.IsExported() || name == "main" || name == "init" {
		return
	}
	if f.Recv != nil {
		name = baseType(f.Recv.List[0].Type) + "." + name
	}
	g.names[object] = typeName(folder, name)
}

// addDeclaration takes in one declaration of a file. within is the function that it is, nil for all else.
func (g *callGraph) addDeclaration(c *checker, declaration ast.Decl, within types.Object) {
	rows := rowsOf(declaration)
	ast.Inspect(declaration, func(node ast.Node) bool {
		name, ok := node.(*ast.Ident)
		if !ok {
			return true
		}
		used, ok := c.info.Uses[name].(*types.Func)
		if !ok {
			return true
		}
		object := types.Object(used.Origin())
		g.uses[object]++
		if g.caller[object] = within; rows[name] {
			g.uses[object]++ // a row of a table
		}
		return true
	})
}

// addFunctions finds the functions that are named once, and their chains.
func (u *usage) addFunctions(c *checker) {
	g := &callGraph{map[types.Object]int{}, map[types.Object]types.Object{}, map[types.Object]string{}}
	for folder, files := range c.syntax {
		for _, file := range files {
			generated := ast.IsGenerated(file)
			for _, declaration := range file.Decls {
				var within types.Object
				if f, ok := declaration.(*ast.FuncDecl); ok && !generated {
					within = c.info.Defs[f.Name]
					u.functions++
					g.addName(within, folder, f)
				}
				g.addDeclaration(c, declaration, within)
			}
		}
	}
	longest := map[types.Object]int{} // of the chain that begins with the function
	for object := range g.names {
		length := 0
		for o := object; o != nil && g.names[o] != "" && g.uses[o] == 1 && length < 50; o = g.caller[o] {
			length++
			longest[o] = max(longest[o], length)
		}
	}
	for object, name := range g.names {
		if g.uses[object] != 1 {
			continue
		}
		u.usedOnce[name] = longest[object]
		above := g.caller[object]
		if longest[object] >= minChain && (above == nil || g.uses[above] != 1 || g.names[above] == "") {
			u.chains[name] = longest[object]
		}
	}
}

// rowsOf returns the names of a declaration that are elements of a composite literal: functions in a table.
func rowsOf(declaration ast.Decl) map[*ast.Ident]bool {
	rows := map[*ast.Ident]bool{}
	ast.Inspect(declaration, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Value
			}
			switch e := element.(type) {
			case *ast.Ident:
				rows[e] = true
			case *ast.SelectorExpr:
				rows[e.Sel] = true
			}
		}
		return true
	})
	return rows
}

// onceShare is how many of 100 functions are used once.
func (u *usage) onceShare() float64 {
	return 100 * float64(len(u.usedOnce)) / float64(max(u.functions, 1))
}

// addTypes counts the fields and the methods of every type with a name.
func (u *usage) addTypes(c *checker) {
	for _, object := range c.info.Defs {
		name, ok := object.(*types.TypeName)
		if !ok || name.Parent() != name.Pkg().Scope() || name.IsAlias() {
			continue
		}
		title := typeName(strings.TrimPrefix(strings.TrimPrefix(name.Pkg().Path(), c.module), "/"), name.Name())
		switch t := name.Type().Underlying().(type) {
		case *types.Struct:
			u.flattened[title], u.depth[title] = flatten(t, map[types.Type]bool{name.Type(): true})
			u.methods[title] = types.NewMethodSet(types.NewPointer(name.Type())).Len()
		case *types.Interface:
		default:
			u.methods[title] = types.NewMethodSet(types.NewPointer(name.Type())).Len()
		}
	}
}

// flatten counts the fields of a struct and of the structs that it embeds, and how deep they embed each other.
func flatten(s *types.Struct, seen map[types.Type]bool) (fields, depth int) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if !f.Embedded() {
			fields++
			continue
		}
		embedded := f.Type()
		if pointer, ok := embedded.(*types.Pointer); ok {
			embedded = pointer.Elem()
		}
		inner, below := 1, 0
		if t, ok := embedded.Underlying().(*types.Struct); ok && !seen[embedded] {
			seen[embedded] = true
			inner, below = flatten(t, seen)
		}
		fields, depth = fields+inner, max(depth, below+1)
	}
	return fields, depth
}
