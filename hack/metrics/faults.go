// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// listed is a list in a document that follows from the catalogue. Its name is in the marker before it, and the head of a table
// follows that.
var listed = regexp.MustCompile(`(?s)<!-- faults: ([^\n]+?) -->(\n\|[^\n]*\n[|-]+\n)?.*?<!-- /faults -->`)

// docPage is a document: where the runbook is from there, and in which language it is.
type docPage struct {
	runbook string
	chinese bool
}

// lists are the texts of the lists by their names. The codes that a search finds are a list, too: see foundIn.
var lists = map[string]func(fault.Catalogue, docPage) string{
	"what heals them": func(c fault.Catalogue, p docPage) string {
		return p.rows(c, func(e fault.Entry) []string { return []string{p.title(e), p.repair(e)} })
	},
	"titles": func(c fault.Catalogue, p docPage) string {
		return p.rows(c, func(e fault.Entry) []string { return []string{p.title(e)} })
	},
	"an eviction helps": func(c fault.Catalogue, _ docPage) string {
		return and(c.Codes(func(e fault.Entry) bool {
			return e.Operation != "" && e.At[fault.PlaceVolume].NewPod
		}), func(code fault.Code) string { return "`" + string(code) + "`" })
	},
}

// foundIn begins the name of the list of the codes that a search finds, with links to their runbooks.
const foundIn = "found in "

func foundBy(s fault.Search) func(fault.Catalogue, docPage) string {
	return func(c fault.Catalogue, p docPage) string {
		var all []string
		for _, code := range c.FoundBy(s) {
			all = append(all, p.link(code))
		}
		return strings.Join(all, ", ")
	}
}

func (p docPage) link(code fault.Code) string {
	suffix := ".md"
	if p.chinese {
		suffix = ".zh-CN.md"
	}
	return fmt.Sprintf("[%s](%s%s%s)", code, p.runbook, code, suffix)
}

func (p docPage) title(e fault.Entry) string {
	if p.chinese {
		return e.Chinese.Title
	}
	return e.Title
}

func (p docPage) repair(e fault.Entry) string {
	if p.chinese {
		return e.Chinese.Repair
	}
	return e.Repair
}

// rows renders a table with one row for each fault: a link to its code, and the cells.
func (p docPage) rows(c fault.Catalogue, cells func(fault.Entry) []string) string {
	var b strings.Builder
	for _, e := range c {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(append([]string{p.link(e.Code)}, cells(e)...), " | "))
	}
	return b.String()
}

// and is a list in a sentence.
func and(codes []fault.Code, text func(fault.Code) string) string {
	var b strings.Builder
	for i, code := range codes {
		switch {
		case i > 0 && i == len(codes)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(text(code))
	}
	return b.String()
}

// fillLists puts the lists of a document in the place of those that are there.
func fillLists(c fault.Catalogue, name, text string) (string, error) {
	at, err := filepath.Rel(filepath.Dir(name), "docs/runbook")
	if err != nil {
		return "", fmt.Errorf("find the runbook from %q: %w", name, err)
	}
	p := docPage{at + "/", strings.HasSuffix(name, ".zh-CN.md")}
	filled := listed.ReplaceAllStringFunc(text, func(old string) string {
		parts := listed.FindStringSubmatch(old)
		list := lists[parts[1]]
		if of, ok := strings.CutPrefix(parts[1], foundIn); ok && slices.Contains(fault.Searches(), fault.Search(of)) {
			list = foundBy(fault.Search(of))
		}
		if list == nil {
			err = fmt.Errorf("%s: there is no list %q", name, parts[1])
			return old
		}
		return "<!-- faults: " + parts[1] + " -->" + parts[2] + list(c, p) + "<!-- /faults -->"
	})
	return filled, err
}

// countedCodes are the codes that a rule for Prometheus counts. The first part of the pattern ends with the name of the rule.
var countedCodes = regexp.MustCompile(`(- alert: (\w+)\n +expr: >-\n[^\n]*kubediag_faults\{)code=~?"[^"]*"`)

// fillRules puts into each rule the codes whose entries name it.
func fillRules(c fault.Catalogue, text string) string {
	return countedCodes.ReplaceAllStringFunc(text, func(old string) string {
		parts := countedCodes.FindStringSubmatch(old)
		var codes []string
		for _, code := range c.Codes(func(e fault.Entry) bool { return slices.Contains(e.Alerts, parts[2]) }) {
			codes = append(codes, string(code))
		}
		matches := `code="`
		if len(codes) > 1 {
			matches = `code=~"`
		}
		return parts[1] + matches + strings.Join(codes, "|") + `"`
	})
}

// documents are the names of all pages in the tree at root that may have lists.
func documents(root string) ([]string, error) {
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, fmt.Errorf("list documents: %w", err)
		}
		for _, name := range names {
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return nil, fmt.Errorf("list documents: %w", err)
			}
			all = append(all, relative)
		}
	}
	return all, nil
}

// faultFiles are the files with lists of faults, as they have to be.
func faultFiles(root string, c fault.Catalogue) (map[string]string, error) {
	names, err := documents(root)
	if err != nil {
		return nil, err
	}
	made := map[string]string{}
	for _, name := range append(names, rules) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, fmt.Errorf("read document: %w", err)
		}
		if name == rules {
			made[name] = fillRules(c, string(text))
		} else if made[name], err = fillLists(c, name, string(text)); err != nil {
			return nil, err
		}
	}
	return made, nil
}
