// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/vm/matrix"
)

// kernelLimit is how long the tests of one package may take in a virtual machine.
const kernelLimit = 20 * time.Minute

// sideBySide is how many kernels run at once. Tests wait more than they work: two leave two processors idle for most of the time.
const sideBySide = 3

// column is one kernel of the matrix.
type column struct {
	kernel string // as it was asked for
	name   string // its first two numbers
	report *report
	err    error
}

// runKernels runs the kernel tier on every kernel, closes with a line for each, and compares the results with the page.
func runKernels(ctx context.Context, out io.Writer, t tier, o options) (ok bool, err error) {
	found, err := findTests(".")
	if err == nil {
		found, err = matching(found, o.only)
	}
	if err != nil {
		return false, err
	}
	suites := suitesOf(found, t.tag, o)
	built, err := matrix.Compile(ctx, filepath.Join("bin", "kernels"), t.tag, suites)
	if err != nil {
		return false, err
	}
	defer func() { _ = built.Close() }()
	printer := &sync.Mutex{}
	columns := make([]*column, len(o.kernels))
	var all sync.WaitGroup
	turns := make(chan struct{}, sideBySide)
	for i, version := range o.kernels {
		c := &column{kernel: version, name: version, report: newReport(&eventWriter{printer: printer, out: out})}
		columns[i] = c
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			c.err = c.run(ctx, t, built, suites)
		})
	}
	all.Wait()
	if own := scenes(found, o); len(own) > 0 {
		c := &column{name: "scenes", report: newReport(out)}
		columns = append(columns, c)
		for _, args := range own {
			c.err = errors.Join(c.err, goTest(ctx, c.report, t.call(args...)))
		}
	}
	ok = true
	for _, c := range columns {
		n := c.report.close()
		if c.err != nil {
			fmt.Fprintf(out, "FAIL  %s: %v\n", c.title(), c.err)
		}
		ok = ok && n.failed == 0 && n.passed > 0 && c.err == nil
	}
	if o.only == "" && len(o.dirs) == 0 {
		if err := support(out, columns, ok, o.write); err != nil {
			fmt.Fprintf(out, "FAIL  %s: %v\n", supportPage, err)
			ok = false
		}
	}
	for _, c := range columns {
		n := c.report.counts
		fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", c.title(), n.passed, n.failed, n.skipped)
	}
	return ok, nil
}

// untagged are packages whose tests of the unit tier depend on the kernel, too.
var untagged = []string{"./internal/linux/...", "./internal/kubelet"}

// suitesOf lists the packages of the tier that were asked for, each with its tests.
func suitesOf(found []testFile, tag string, o options) (suites []matrix.Suite) {
	found = slices.Clone(found)
	for i, f := range found {
		if f.tag == "" && chosen(untagged, f.dir) {
			found[i].tag = tag
		}
	}
	for _, dir := range packages(found, tag) {
		s := matrix.Suite{Dir: strings.TrimPrefix(dir, "./"), Pattern: pattern(found, dir, tag)}
		shown := shows(s.Dir)
		if o.only != "" {
			s.Pattern = o.only
		} else if o.table {
			s.Pattern = "^(" + strings.Join(shown, "|") + ")$"
		}
		if chosen(o.dirs, dir) && (!o.table || len(shown) > 0) {
			suites = append(suites, s)
		}
	}
	return suites
}

// title is how the closing line names the column.
func (c *column) title() string {
	if c.kernel == "" {
		return c.name
	}
	return "kernel " + c.name
}

// sceneTag is the build tag of tests that start virtual machines by themselves.
const sceneTag = "vm"

// scenes lists the arguments of go test for them. A run for the tables leaves them out, unless it writes the page: then it
// has those that rows rest on.
func scenes(found []testFile, o options) (calls [][]string) {
	for _, dir := range packages(found, sceneTag) {
		run, shown := pattern(found, dir, sceneTag), shows(strings.TrimPrefix(dir, "./"))
		if o.only != "" {
			run = o.only
		} else if o.table {
			run = "^(" + strings.Join(shown, "|") + ")$"
		}
		if chosen(o.dirs, dir) && (!o.table || o.write && len(shown) > 0) {
			calls = append(calls, []string{"-timeout=20m", "-tags=" + sceneTag, "-run=" + run, dir})
		}
	}
	return calls
}

// support prints the tables of the kernels' features. If all tests have passed, it compares them with the page, or writes
// the page.
func support(out io.Writer, columns []*column, passed, write bool) error {
	seen := map[string]map[string]outcome{}
	var names []string
	for _, c := range columns {
		switch {
		case c.kernel == "":
			addScenes(seen, c.report.ended)
		case seen[c.name] == nil: // the machine's own may be one of the others
			names = append(names, c.name)
			seen[c.name] = c.report.ended
		}
	}
	page, err := os.ReadFile(supportPage)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sheets() {
		cells, err := s.matrixOf(names, seen)
		table := s.table(names, cells)
		fmt.Fprintln(out, table)
		if err == nil && passed && !write {
			err = s.check(page, names, cells)
		}
		before, _, after := s.cut(page)
		page = slices.Concat(before, []byte(table), after)
		errs = append(errs, err)
	}
	if !passed {
		return nil // the failures have been reported
	}
	if err := errors.Join(errs...); err != nil || !write {
		return err
	}
	return os.WriteFile(supportPage, page, 0o644)
}

// chosen reports whether a package is among those that were asked for.
func chosen(wanted []string, dir string) bool {
	for _, w := range wanted {
		below, all := strings.CutSuffix(w, "/...")
		if w == dir || all && (dir == below || strings.HasPrefix(dir, below+"/")) {
			return true
		}
	}
	return len(wanted) == 0
}

// run runs the suites on one kernel and passes the results to the report.
func (c *column) run(ctx context.Context, t tier, built *matrix.Build, suites []matrix.Suite) error {
	if c.kernel == own {
		return c.runOwn(ctx, t, suites)
	}
	events, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := built.Run(ctx, c.kernel, suites, kernelLimit, in)
		_ = in.Close() // a pipe's never fails
		ended <- err
	}()
	c.report.read(events)
	return errors.Join(<-ended, context.Cause(ctx))
}

// runOwn runs the suites on the machine itself, as the kernel tier does.
func (c *column) runOwn(ctx context.Context, t tier, suites []matrix.Suite) error {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err = errors.Join(err, os.Setenv(kerneltest.RoundsEnv, matrix.Rounds)); err != nil {
		return err
	}
	numbers := strings.SplitN(string(release), ".", 3)
	c.name = strings.Join(numbers[:min(2, len(numbers))], ".")
	for _, s := range suites {
		if err := goTest(ctx, c.report, t.call("-timeout=15m", "-tags="+t.tag, "-run="+s.Pattern, "./"+s.Dir)); err != nil {
			return err
		}
	}
	return nil
}

// eventWriter keeps lines whole where several reports print at once.
type eventWriter struct {
	printer *sync.Mutex
	out     io.Writer
	line    bytes.Buffer
}

func (w *eventWriter) Write(p []byte) (int, error) {
	w.line.Write(p)
	if bytes.HasSuffix(p, []byte("\n")) {
		w.printer.Lock()
		defer w.printer.Unlock()
		_, err := w.line.WriteTo(w.out)
		return len(p), err
	}
	return len(p), nil
}
