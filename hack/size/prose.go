// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

// prose holds the figures of texts in English.
type prose struct{ words, badOpenings int }

var (
	wordPattern   = regexp.MustCompile(`[A-Za-z][A-Za-z'’-]*`)
	sentenceEnd   = regexp.MustCompile(`[.!?]\s+`)
	badOpening    = regexp.MustCompile(`^(What|Who|Where|That|Of)\b`)
	listMarker    = regexp.MustCompile(`^\s*([-*>]|\d+\.)\s+`)
	headingOrMark = regexp.MustCompile(`^(#|\+[a-z])`)
	codeIndent    = regexp.MustCompile(`^(\t| {4})\s*[^-*\s]`)
)

// addText counts the sentences of a Markdown text or a comment.
func (p *prose) addText(text string) {
	var paragraph []string
	endParagraph := func() {
		p.addParagraph(strings.Join(paragraph, " "))
		paragraph = nil
	}
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
			endParagraph()
		case fenced || codeIndent.MatchString(line) && paragraph == nil:
		case trimmed == "" || headingOrMark.MatchString(trimmed):
			endParagraph()
		case listMarker.MatchString(line):
			endParagraph()
			paragraph = append(paragraph, listMarker.ReplaceAllString(line, ""))
		case strings.HasPrefix(trimmed, "|"):
			endParagraph()
			p.addParagraph(trimmed)
		default:
			paragraph = append(paragraph, trimmed)
		}
	}
	endParagraph()
}

func (p *prose) addParagraph(text string) {
	p.words += len(wordPattern.FindAllString(text, -1))
	for text != "" {
		sentence := text
		if end := sentenceEnd.FindStringIndex(text); end != nil {
			sentence = text[:end[1]]
		}
		text = text[len(sentence):]
		if badOpening.MatchString(sentence) && !strings.HasSuffix(strings.TrimSpace(sentence), "?") {
			p.badOpenings++
		}
	}
}

// badPer10000 is how many sentences open badly for 10,000 words.
func (p prose) badPer10000() float64 {
	return 10000 * float64(p.badOpenings) / float64(max(p.words, 1))
}
