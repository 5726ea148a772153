// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// maxPackages is how many packages may declare the same unexported name.
const maxPackages = 2

// row is a line of the table. The bound holds for the first figure alone.
type row struct {
	title   string
	figures []string // of product, tests and tools
	bound   string   // empty: none
	broken  bool
}

// report renders the figures of the tree.
func (t *tree) report() string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\tproduct\ttests\ttools\twanted of product (!: not so)")
	for _, r := range t.rows() {
		bound := r.bound
		if r.broken {
			bound += "  !"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", r.title, strings.Join(r.figures, "\t"), bound)
	}
	_ = table.Flush() // a strings.Builder takes all
	code := t.areas[product]
	list(&text, "widest structs, in fields", t.usage.flattened, 5)
	list(&text, "widest receivers, in methods", t.usage.methods, 5)
	list(&text, "most shared names, in packages", code.sharedNames(), 10)
	list(&text, "longest chains of functions used once", t.usage.chains, 10)
	return trimLines(text.String())
}

func (t *tree) rows() []row {
	return []row{
		t.row("lines", "", func(c *code) float64 { return float64(c.lines) }, nil),
		t.row("files", "", func(c *code) float64 { return float64(c.files) }, nil),
		t.row("packages", "", func(c *code) float64 { return float64(len(c.packages)) }, nil),
		t.spread("lines of a function, p50/p90/p99/max", func(c *code) []int { return c.functionLines }, 50, 90, 99, 100),
		t.row("functions per 1000 lines", "at most 42", (*code).functionsPer1000, atMost(42)),
		productRow("functions used once, %", t.usage.onceShare(), 27),
		productRow("chains of three or more of them", float64(len(t.usage.chains)), 15),
		t.row("length of names, median", "at least 9", func(c *code) float64 { return float64(percentile(c.mainNames, 50)) }, atLeast(9)),
		t.spread("length of names, p90", func(c *code) []int { return c.mainNames }, 90),
		t.spread("length of every declared name, p50/p90", func(c *code) []int { return c.allNames }, 50, 90),
		productRow("fields of the widest struct", widest(t.usage.flattened), 20),
		productRow("depth of embedding", widest(t.usage.depth), 1),
		productRow("methods of the widest receiver", widest(t.usage.methods), 20),
		t.row("names that more than two packages share", "", func(c *code) float64 { return float64(len(c.sharedNames())) }, nil),
		t.row("What/Who/Where/That/Of sentences per 10000 words of comments", "at most 5",
			func(c *code) float64 { return c.comments.per10000(c.comments.badOpenings) }, atMost(5)),
		productRow("What/Who/Where/That/Of sentences per 10000 words of docs", t.docs.per10000(t.docs.badOpenings), 5),
		t.row("relative what in 10000 words of comments", "at most 15",
			func(c *code) float64 { return c.comments.per10000(c.comments.relatives) }, atMost(15)),
	}
}

// productRow is a row of one figure, which is to be at most the limit.
func productRow(title string, figure, limit float64) row {
	return row{title: title, figures: []string{number(figure), "", ""}, bound: "at most " + number(limit), broken: figure > limit}
}

func (t *tree) row(title, bound string, figure func(*code) float64, holds func(float64) bool) row {
	r := row{title: title, bound: bound, broken: holds != nil && !holds(figure(t.areas[product]))}
	for _, c := range t.areas {
		r.figures = append(r.figures, number(figure(c)))
	}
	return r
}

func (t *tree) spread(title string, values func(*code) []int, percents ...int) row {
	r := row{title: title}
	for _, c := range t.areas {
		var parts []string
		for _, percent := range percents {
			parts = append(parts, fmt.Sprint(percentile(values(c), percent)))
		}
		r.figures = append(r.figures, strings.Join(parts, "/"))
	}
	return r
}

func atMost(limit float64) func(float64) bool  { return func(f float64) bool { return f <= limit } }
func atLeast(limit float64) func(float64) bool { return func(f float64) bool { return f >= limit } }

// number has one decimal unless the value is whole.
func number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

func (c *code) functionsPer1000() float64 {
	return 1000 * float64(len(c.functionLines)) / float64(max(c.lines, 1))
}

// sharedNames returns the number of packages for each name that more than maxPackages declare.
func (c *code) sharedNames() map[string]int {
	shared := map[string]int{}
	for name, folders := range c.declaredBy {
		if len(folders) > maxPackages {
			shared[name] = len(folders)
		}
	}
	return shared
}

// percentile of no values is 0.
func percentile(values []int, percent int) int {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

func widest(counts map[string]int) float64 {
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	return float64(most)
}

// list writes the largest counts, each with its name.
func list(text *strings.Builder, title string, counts map[string]int, limit int) {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	fmt.Fprintf(text, "\n%s:\n", title)
	for _, name := range names[:min(limit, len(names))] {
		fmt.Fprintf(text, "%5d  %s\n", counts[name], name)
	}
}

func trimLines(text string) string {
	var trimmed strings.Builder
	for line := range strings.Lines(text) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}
