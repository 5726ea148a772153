// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package runbook holds the pages of this directory, so that the program can show them where no network is.
package runbook

import (
	"embed"
	"fmt"
	"slices"
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
