// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"kubediag.org/kubediag/test/vm/matrix"
)

// kernelLimit is what the tests of one package may take in a virtual machine.
const kernelLimit = 8 * time.Minute

// sideBySide is how many virtual machines run at once.
const sideBySide = 2

// runKernels runs the kernel tier on every kernel and closes with a line for each.
func runKernels(ctx context.Context, out io.Writer, t tier, o options) (ok bool, err error) {
	found, err := findTests(".")
	if err != nil {
		return false, err
	}
	var suites []matrix.Suite
	for _, dir := range packages(found, t.tag) {
		s := matrix.Suite{Dir: strings.TrimPrefix(dir, "./"), Pattern: pattern(found, dir, t.tag)}
		if o.only != "" {
			s.Pattern = o.only
		}
		if chosen(o.dirs, dir) {
			suites = append(suites, s)
		}
	}
	built, err := matrix.Compile(ctx, filepath.Join("bin", "kernels"), t.tag, suites)
	if err != nil {
		return false, err
	}
	printer := &sync.Mutex{}
	reports, errs := make([]*report, len(o.kernels)), make([]error, len(o.kernels))
	var all sync.WaitGroup
	turns := make(chan struct{}, sideBySide)
	for i, version := range o.kernels {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			reports[i] = newReport(&eventWriter{printer: printer, out: out})
			errs[i] = onKernel(ctx, reports[i], built, version, suites)
		})
	}
	all.Wait()
	ok = true
	for i, version := range o.kernels {
		c := reports[i].close()
		if errs[i] != nil {
			fmt.Fprintf(out, "FAIL  kernel %s: %v\n", version, errs[i])
		}
		fmt.Fprintf(out, "kernel %s: %d passed, %d failed, %d skipped\n", version, c.passed, c.failed, c.skipped)
		ok = ok && c.failed == 0 && c.passed > 0 && errs[i] == nil
	}
	return ok, nil
}

// chosen says whether a package is among those that were asked for.
func chosen(wanted []string, dir string) bool {
	for _, w := range wanted {
		below, all := strings.CutSuffix(w, "/...")
		if w == dir || all && (dir == below || strings.HasPrefix(dir, below+"/")) {
			return true
		}
	}
	return len(wanted) == 0
}

// onKernel runs the suites on one kernel and tells the report.
func onKernel(ctx context.Context, r *report, built *matrix.Build, version string, suites []matrix.Suite) error {
	events, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := built.Run(ctx, version, suites, kernelLimit, in)
		in.Close()
		ended <- err
	}()
	r.read(events)
	return errors.Join(<-ended, context.Cause(ctx))
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
