// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package runbook holds the pages of this directory, so that the program can show them where no network is.
package runbook

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.md
var pages embed.FS

// suffixes of the pages by language.
var suffixes = map[string]string{"en": ".md", "zh": ".zh-CN.md"}

// Languages lists the languages that every page has.
func Languages() []string { return []string{"en", "zh"} }

// Page returns the page about a fault as Markdown.
func Page(code, language string) (string, error) {
	if !slices.Contains(Languages(), language) {
		return "", fmt.Errorf("language %q: no page", language)
	}
	text, err := pages.ReadFile(code + suffixes[language])
	if err != nil {
		return "", fmt.Errorf("read page about %q: %w", code, err)
	}
	return string(text), nil
}

// preventions begin the paragraph about prevention in a page.
var preventions = map[string]string{"en": "To prevent this fault, ", "zh": "预防："}

// Prevention returns the end of a page, about how to prevent the fault. It is empty if the page has none.
func Prevention(code, language string) (string, error) {
	text, err := Page(code, language)
	if err != nil {
		return "", err
	}
	_, text, found := strings.Cut(text, "\n"+preventions[language])
	if !found {
		return "", nil
	}
	text, _, _ = strings.Cut(text, "\n#")
	var lines []string
	for _, part := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if fenced, ok := strings.CutPrefix(part, "```yaml\n"); ok {
			lines = append(lines, strings.TrimSuffix(fenced, "\n```"))
			continue
		}
		lines = append(lines, strings.ReplaceAll(strings.ReplaceAll(part, "\n", " "), "`", ""))
	}
	return strings.Join(lines, "\n"), nil
}
