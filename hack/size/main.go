// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command size prints the figures of a tree of Go code beside the bounds that are wanted. It measures each folder that its
// arguments name, or the current one, in the same way, so that trees can be compared. A tree need not build, and nothing
// of other modules is read. A figure out of its bound is marked and does not fail the command.
//
// Tests are files that end in _test.go, and all below folders named e2e or with names that end in test: test, kerneltest.
// Tools are the files below hack. All others are the product: cmd, internal, api and config. Generated files, testdata,
// vendor and folders that begin with a dot or an underscore are left out. Modules below the folder are part of the tree.
//
//   - A line is a line of the file, with comments and blanks. A package is a folder that holds files.
//   - A function is a declared function or method. Its length runs from func to the closing brace.
//   - The length of names is counted twice: of functions, methods and types, once for each declaration; and of every name
//     that is declared, which adds constants, variables, fields, parameters, results, receivers and locals.
//   - A struct has as many fields as names in it, and those of each struct of the tree that it embeds. Its depth is how
//     many structs lie within each other by embedding. A receiver has the methods that it gets by embedding, too.
//   - A function is used once if it is unexported and the product names it in one place, other than as a row of a table.
//     Three or more such functions that call each other are a chain.
//   - A name is shared if more than two packages declare an unexported function, method, type, constant or variable of
//     that name. Exported names do not count: they are read after the name of their package.
//   - A sentence opens badly with What, Who, Where, That or Of, unless it is a question. The word "what" is
//     counted within sentences, unless they are questions. Comments are those of Go files, without licences, markers and code;
//     docs are Markdown files in English, without headings and code.
package main

import (
	"fmt"
	"os"
)

func main() {
	folders := os.Args[1:]
	if len(folders) == 0 {
		folders = []string{"."}
	}
	for _, folder := range folders {
		measured, err := measureTree(folder)
		if err != nil {
			fmt.Fprintf(os.Stderr, "size: measuring %q: %v\n", folder, err)
			os.Exit(1)
		}
		fmt.Print(measured.report())
	}
}
