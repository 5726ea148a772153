// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package ui writes pages for a browser: findings, the chain from the source of a volume to its container, plans and commands.
//
// A page is one document without script, and loads nothing. All texts may come from an attacker: they are made printable and escaped
// here, in one place. The package knows neither nodes nor clusters, and words nothing a second time: its callers hand it the sentences
// that they also write on a terminal.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

//go:embed page.html style.css live.js
var files embed.FS

// State says how something is, for its mark and its colour.
type State string

// States. The empty one says nothing.
const (
	Good State = "good"
	Warn State = "warn"
	Bad  State = "bad"
)

// Rank sorts states, the worst first.
func (s State) Rank() int { return slices.Index([]State{Bad, Warn, "", Good}, s) }

// StateOf is the state that a colour of a terminal means.
func StateOf(c terminal.Colour) State {
	return map[terminal.Colour]State{terminal.Red: Bad, terminal.Yellow: Warn, terminal.Green: Good}[c]
}

// Page is a document with a verdict on top.
type Page struct {
	Language Language
	Title    string
	Made     time.Time
	State    State
	Verdict  string
	Notes    []string
	Sections []Section
	// Menu leads to the other pages of a server.
	Menu []MenuItem
	// Version counts the changes that the server has reported before the page was made, so that the page knows if it has missed one.
	Version int
	// Token is in the forms of a page that is served; empty: the page is a file, without forms and links to other pages.
	Token string
}

// MenuItem leads to another page. Current is set on that page.
type MenuItem struct {
	Link, Text string
	Current    bool
}

// Section is a part of a page. Its parts that are empty are left out.
type Section struct {
	// ID is the anchor of the section.
	ID, Heading string
	Text        []string
	Table       Table
	Chain       []Link
	Steps       []Step
	Tiles       []Tile
	Facts       []Fact
	Commands    []fault.Command
	Folded      []Folded
	Forms       []Form
}

// Form is a button that changes something. Its fields are sent with it.
type Form struct {
	Action, Label string
	Fields        []Fact
}

// Table is a table, with links to sections from its first column.
type Table struct {
	Columns []string
	Rows    []Row
}

// Row is a row of a table.
type Row struct {
	State State
	// Link is where the first cell leads, such as # and the ID of a section; empty: nowhere.
	Link  string
	Cells []string
	Below string
}

// Tile is one of many like things, such as a node of the cluster. Its mark and its text have the meaning of its colour.
type Tile struct {
	State            State
	Link, Name, Text string
}

// Fact is a value with its name. Link is where the value leads; empty: nowhere.
type Fact struct{ Name, Value, Link string }

// Folded is a list that a reader opens.
type Folded struct {
	Heading string
	Lines   []string
}

// First are the first members of a list, at most that many, and a note of how many more there are, which ends in rest. There is no note if
// none is left out.
func First[T any](list []T, most int, rest string) (shown []T, note []string) {
	if more := len(list) - most; more > 0 {
		return list[:most], []string{fmt.Sprintf("and %d more%s", more, rest)}
	}
	return list, nil
}

// Asset returns the style sheet or the script of pages that are served, by its name.
func Asset(name string) ([]byte, error) { return files.ReadFile(name) }

// headLive has the files that a page which is served loads.
const headLive = `<link rel="stylesheet" href="/style.css">` + "\n" + `<script src="/live.js" defer></script>`

// headFile has the style sheet of a page that is a file, and a policy that allows nothing else.
var headFile = sync.OnceValues(func() (template.HTML, error) {
	style, err := Asset("style.css")
	if err != nil {
		return "", fmt.Errorf("read style sheet: %w", err)
	}
	sum := sha256.Sum256(style)
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	return template.HTML(`<meta http-equiv="Content-Security-Policy" content="` + policy + "\">\n<style>" + string(style) + "</style>"), nil //nolint:gosec // no text from outside
})

// templates are those of the languages. Each is read once: to find out how to escape each place takes longer than to write a page.
var templates = map[Language]func() (*template.Template, error){English: sync.OnceValues(English.template), Chinese: sync.OnceValues(Chinese.template)}

func (l Language) template() (*template.Template, error) {
	page, err := template.New("page.html").Funcs(template.FuncMap{"t": l.Word, "draw": l.draw, "steps": l.drawSteps}).ParseFS(files, "page.html")
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	return page, nil
}

// Write writes a page: as one file, or with a token as it is served. It changes the texts of the page: all that cannot be printed is escaped.
func Write(w io.Writer, p Page) error {
	printable.Fields(&p)
	head, err := template.HTML(headLive), error(nil)
	if p.Token == "" {
		head, err = headFile()
	}
	if err != nil {
		return err
	}
	of, ok := templates[p.Language]
	if !ok {
		of = templates[English]
	}
	page, err := of()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := page.Execute(&b, map[string]any{"Page": p, "Head": head}); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
