// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// area is the purpose of a file.
type area int

const (
	product area = iota
	tests
	tools
	areaCount
)

// tree holds the figures of all files below a folder.
type tree struct {
	areas [areaCount]*code
	docs  prose
	usage *usage // of the product
}

// measureTree reads all Go files and English Markdown files below the folder.
func measureTree(folder string) (*tree, error) {
	t := &tree{}
	for i := range t.areas {
		t.areas[i] = newCode()
	}
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if file != folder && isSkipped(entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		relative, err := filepath.Rel(folder, file)
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return t.addFile(file, filepath.ToSlash(relative))
	})
	if err == nil {
		t.usage, err = measureUsage(folder)
	}
	return t, err
}

func isSkipped(folder string) bool {
	return slices.Contains([]string{"testdata", "vendor", "node_modules", "bin", "dist"}, folder) || strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "_")
}

// addFile measures a file; relative is its name from the top of the tree, with slashes.
func (t *tree) addFile(file, relative string) error {
	isDocument := path.Ext(relative) == ".md" && !isChinese(relative)
	if !isDocument && path.Ext(relative) != ".go" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if isDocument {
		t.docs.addText(string(content))
		return nil
	}
	return t.areas[areaOf(relative)].addFile(relative, content)
}

func areaOf(relative string) area {
	if strings.HasSuffix(relative, "_test.go") {
		return tests
	}
	for folder := range strings.SplitSeq(path.Dir(relative), "/") {
		switch {
		case folder == "e2e" || strings.HasSuffix(folder, "test"):
			return tests
		case folder == "hack":
			return tools
		}
	}
	return product
}

// isChinese reports whether a document lies in a folder zh or has a name such as README.zh-CN.md.
func isChinese(relative string) bool {
	return strings.Contains("/"+relative, "/zh/") || strings.Contains(path.Base(relative), ".zh")
}
