// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"regexp"
	"strings"
)

var (
	markdownLink = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)
	listItem     = regexp.MustCompile(`^( *)([-*]|[0-9]+\.) `)
)

// Markdown fits a page to the screen: paragraphs and items of lists are filled, links lose their targets within the
// page's source tree, and headings are bold. Code and tables stay as they are.
func (s Screen) Markdown(page string) string {
	var text strings.Builder
	code, indent, paragraph := false, "", ""
	flush := func() {
		if paragraph != "" {
			mark := listItem.FindString(paragraph)
			text.WriteString(s.Wrap(indent+mark, withoutLinks(strings.TrimPrefix(paragraph, mark)), len(indent)+len(mark)))
		}
		paragraph = ""
	}
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```")
		switch {
		case fence:
			flush()
			code = !code
		case code:
			text.WriteString("    " + line + "\n")
		case trimmed == "":
			flush()
			text.WriteByte('\n')
		case strings.HasPrefix(line, "#"):
			flush()
			text.WriteString(s.Paint(Bold, strings.TrimLeft(line, "# ")) + "\n")
		case strings.HasPrefix(trimmed, "|"):
			flush()
			text.WriteString(withoutLinks(line) + "\n")
		default:
			if listItem.MatchString(line) {
				flush()
				indent = line[:len(line)-len(strings.TrimLeft(line, " "))]
			} else if paragraph == "" {
				indent = line[:len(line)-len(strings.TrimLeft(line, " "))]
			}
			paragraph = join(paragraph, trimmed)
		}
	}
	flush()
	return text.String()
}

// withoutLinks keeps the addresses of other sites.
func withoutLinks(text string) string {
	return markdownLink.ReplaceAllStringFunc(text, func(link string) string {
		parts := markdownLink.FindStringSubmatch(link)
		if strings.Contains(parts[2], "://") {
			return parts[1] + " (" + parts[2] + ")"
		}
		return parts[1]
	})
}
