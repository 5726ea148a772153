// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

// prose holds the figures of texts in English.
type prose struct{ words, badOpenings, relatives int }

var (
	wordPattern   = regexp.MustCompile(`[A-Za-z][A-Za-z'’-]*`)
	sentenceEnd   = regexp.MustCompile(`[.!?]\s+`)
	relativeWhat  = regexp.MustCompile(`[a-z,;:(] *\bwhat\b`)
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
		if strings.HasSuffix(strings.TrimSpace(sentence), "?") {
			continue
		}
		if badOpening.MatchString(sentence) {
			p.badOpenings++
		}
		p.relatives += len(relativeWhat.FindAllString(sentence, -1))
	}
}

// per10000 is the count for 10,000 words.
func (p prose) per10000(count int) float64 { return 10000 * float64(count) / float64(max(p.words, 1)) }
