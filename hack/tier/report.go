// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// event is a line of go test -json, as test2json and go build -json document it.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
	Key, Value  string // of an attribute
}

// maxOutput bounds the kept output of one test, in bytes. If there is more, the end is kept.
const maxOutput = 64 << 10

// slow is the duration from which a test has a line of its own, so that a long tier is seen to move.
const slow = 5 * time.Second

// counts are those of the closing line.
type counts struct{ passed, failed, skipped int }

// report reads the output of go test, and prints the output of a failed test at once, and the reasons of skipped tests at
// the end.
type report struct {
	out     io.Writer
	running map[key]*test
	builds  map[string]*strings.Builder
	counts  counts
	skips   []string
	ended   map[string]outcome // of tests with none below them, by "PACKAGE TEST" as capability has it
}

type key struct{ pkg, name string }

// test is one that has not ended. A package is the test with no name.
type test struct {
	output      strings.Builder
	children    int
	failedBelow bool
	started     bool
	lacks       string // what it says that the kernel lacks
}

func newReport(out io.Writer) *report {
	return &report{out: out, running: map[key]*test{}, builds: map[string]*strings.Builder{}, ended: map[string]outcome{}}
}

// add adds the counts and the output of another report.
func (r *report) add(other *report, said []byte) {
	_, _ = r.out.Write(said)
	r.counts.passed += other.counts.passed
	r.counts.failed += other.counts.failed
	r.counts.skipped += other.counts.skipped
	r.skips = append(r.skips, other.skips...)
}

// read takes in all that one go test says. A line that is no event comes from a tool that go test ran.
func (r *report) read(in io.Reader) {
	lines := bufio.NewReader(in)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			var e event
			if json.Unmarshal([]byte(text), &e) != nil {
				fmt.Fprint(r.out, text)
			} else {
				r.take(e)
			}
		}
		if err != nil {
			break
		}
	}
	r.abandon()
}

func (r *report) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = &strings.Builder{}
		}
		r.builds[e.ImportPath].WriteString(e.Output)
	case "output":
		r.at(k).write(e.Output)
	case "attr":
		if e.Key == kerneltest.Lacks {
			r.at(k).lacks = e.Value
		}
	case "run":
		r.at(k).started = true
		r.at(parent(k)).children++
	case "pass", "fail", "skip":
		r.end(k, e)
	}
}

func (r *report) at(k key) *test {
	if r.running[k] == nil {
		r.running[k] = &test{}
	}
	return r.running[k]
}

// parent of a test is the test above it, that of a test at the top its package.
func parent(k key) key {
	i := strings.LastIndexByte(k.name, '/')
	return key{k.pkg, k.name[:max(i, 0)]}
}

// write keeps the end of the output.
func (t *test) write(s string) {
	t.output.WriteString(s)
	if t.output.Len() > 2*maxOutput {
		kept := t.output.String()[t.output.Len()-maxOutput:]
		t.output.Reset()
		t.output.WriteString("[...]\n" + kept)
	}
}

func (r *report) end(k key, e event) {
	t := r.at(k)
	delete(r.running, k)
	if k.name != "" && (t.children == 0 || e.Action == "fail") {
		r.note(k, t, e.Action)
	}
	switch {
	case e.Action == "fail":
		r.fail(k, t, e)
	case k.name == "":
		fmt.Fprintf(r.out, "ok    %s %.1fs\n", k.pkg, e.Elapsed)
		return
	case t.children > 0:
	case e.Action == "skip":
		r.counts.skipped++
		r.skips = append(r.skips, fmt.Sprintf("SKIP  %s %s: %s", k.pkg, k.name, reason(t.output.String())))
	default:
		r.counts.passed++
	}
	if took := time.Duration(e.Elapsed * float64(time.Second)); took >= slow && k.name != "" && parent(k).name == "" {
		fmt.Fprintf(r.out, "%-5s %s %s %.1fs\n", e.Action, k.pkg, k.name, e.Elapsed)
	}
}

// note keeps how a test ended.
func (r *report) note(k key, t *test, action string) {
	dir := strings.TrimPrefix(k.pkg, "kubediag.org/kubediag/")
	if _, below, ok := strings.Cut(k.pkg, "internal/"); ok {
		dir = below
	}
	o := outcome{action: action, lacks: t.lacks}
	if action == "skip" && o.lacks == "" {
		o.reason = reason(t.output.String())
	}
	r.ended[dir+" "+k.name] = o
}

// fail counts and prints a test that failed by itself. If a test failed only because of a test below it, fail prints
// only its output: the test above reports a panic below.
func (r *report) fail(k key, t *test, e event) {
	what := strings.TrimSpace(k.pkg + " " + k.name)
	if k.name == "" {
		r.abandonPackage(k.pkg, t)
	} else {
		r.at(parent(k)).failedBelow = true
	}
	said := indent(t.output.String())
	switch {
	case !t.failedBelow:
		r.counts.failed++
		fmt.Fprintf(r.out, "FAIL  %s %.1fs\n", what, e.Elapsed)
		if b := r.builds[e.FailedBuild]; b != nil {
			said = indent(b.String()) + said
		}
	case said != "":
		fmt.Fprintf(r.out, "      %s:\n", what)
	}
	fmt.Fprint(r.out, said)
}

// abandonPackage fails the tests that still ran when their package ended: by a panic, a time-out, an exit.
func (r *report) abandonPackage(pkg string, p *test) {
	for _, k := range slices.SortedFunc(maps.Keys(r.running), func(a, b key) int { return strings.Compare(b.name, a.name) }) {
		t := r.running[k]
		if k.pkg != pkg || k.name == "" {
			continue
		}
		delete(r.running, k)
		if !t.started {
			continue
		}
		p.failedBelow = true
		if parent(k).name != "" {
			r.at(parent(k)).failedBelow = true
		}
		if t.failedBelow {
			continue
		}
		r.counts.failed++
		r.note(k, t, "fail")
		fmt.Fprintf(r.out, "FAIL  %s %s (did not end)\n%s", k.pkg, k.name, indent(t.output.String()))
	}
}

// abandon fails the packages that go test never ended.
func (r *report) abandon() {
	for _, k := range slices.SortedFunc(maps.Keys(r.running), func(a, b key) int { return strings.Compare(a.pkg, b.pkg) }) {
		if t, ok := r.running[k]; ok && k.name == "" {
			delete(r.running, k)
			r.fail(k, t, event{})
		}
	}
}

// close lists the skipped tests and gives the counts.
func (r *report) close() counts {
	for _, s := range r.skips {
		fmt.Fprintln(r.out, s)
	}
	return r.counts
}

// reason is the last line of a skipped test, without its file and line.
func reason(output string) string {
	said := ""
	for l := range strings.Lines(output) {
		if !noise.MatchString(l) {
			said = strings.TrimSpace(l)
		}
	}
	if _, text, ok := strings.Cut(said, ".go:"); ok {
		_, said, _ = strings.Cut(text, ": ")
	}
	return said
}

// noise are the lines that go test prints for every failure.
var noise = regexp.MustCompile(`^\s*(=== .*|--- .*|PASS|FAIL|FAIL\t.*|exit status \d+|)\s*$`)

// indent drops the lines that say nothing new and moves the rest to the right.
func indent(output string) string {
	var b strings.Builder
	for l := range strings.Lines(output) {
		if !noise.MatchString(l) {
			b.WriteString("      " + strings.TrimRight(l, "\n") + "\n")
		}
	}
	return b.String()
}
