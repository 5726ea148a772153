// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command tier runs the tests of one tier, and closes with a line that counts them. For example:
//
//	unit: 120 passed, 0 failed, 0 skipped
//
// Every test that has no tests of its own below it is counted. So is every test that fails by itself though none below
// it does, and every package that fails outside its tests. It exits with 1 if anything failed, or if there was no test
// to run: a tier that has lost its tests must not look green.
//
// A tier with a build tag runs the tests that stand in files with exactly that tag. So no test is run, or counted,
// in two tiers. The tier fuzz runs every fuzz test for a few seconds each.
//
// "tier bench" is no tier: it runs the benchmarks of all of them and counts nothing.
//
// gotestsum cannot do it: it also counts tests that have others below them, selects none by file and runs no fuzz tests or kernels.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"kubediag.org/kubediag/test/vm"
)

// tier says how go test is called for the tests of one kind.
type tier struct {
	name  string
	tag   string // build tag of its files, empty for unit
	with  string // further build tags, of files whose functions its tests call
	args  []string
	fuzz  bool
	calls int // of go test at once; 0 is 1
}

// tiers in the order of their output. A tier with a tag has one package in each call of go test. Tests of the unit tier
// depend on their files alone, so the result of an unchanged package comes from Go's cache. Tests of the kernel and cluster
// tiers wait more than they work: two packages run at once, and several clusters.
var tiers = []tier{
	{name: "unit", args: []string{"-timeout=30m"}},
	{name: "fuzz", fuzz: true, args: []string{"-count=1", "-timeout=2m"}},
	{name: "api", tag: "api", args: []string{"-count=1", "-timeout=30m"}, calls: 2},
	{name: "kernel", tag: "kernel", args: []string{"-count=1", "-timeout=30m"}, calls: 2},
	{name: "ceph", tag: "ceph", args: []string{"-count=1", "-timeout=30m"}},
	{name: "cluster", tag: "cluster", args: []string{"-count=1", "-timeout=30m", "-parallel=6"}},
	{name: "release", tag: "release", with: ",cluster,api", args: []string{"-count=1", "-timeout=60m", "-parallel=3"}},
	{name: "kernels", tag: "kernel", args: []string{"-count=1"}},
}

func main() {
	var o options
	flag.BoolVar(&o.race, "race", false, "run the unit tier under the race detector, which needs a C compiler")
	flag.DurationVar(&o.fuzzTime, "fuzztime", 3*time.Second, "how long each fuzz test runs")
	versions := flag.String("kernels", strings.Join(append(vm.Kernels, own), ","), "on which kernels the tier kernels runs; own: this machine's")
	flag.BoolVar(&o.write, "write", false, "have the tier kernels write "+supportPage+" instead of comparing it with what it saw")
	flag.BoolVar(&o.table, "table", false, "have the tier kernels run only the tests that the table rests on")
	flag.StringVar(&o.only, "run", "", "which tests the tier runs, or which benchmarks, as go test -run has it; empty: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if flag.Arg(0) == "bench" {
		if err := bench(ctx, o.only); err != nil {
			fmt.Fprintln(os.Stderr, "tier:", err)
			os.Exit(1)
		}
		return
	}
	i := slices.IndexFunc(tiers, func(t tier) bool { return t.name == flag.Arg(0) })
	if i < 0 || flag.NArg() != 1 && tiers[i].name != "kernels" {
		fmt.Fprintln(os.Stderr, "usage: tier [-race] [-fuzztime 3s] [-run PATTERN] unit|fuzz|api|kernel|ceph|cluster|release|bench\n"+
			"       tier [-kernels 5.10,6.1] [-run PATTERN] kernels [PACKAGE...]")
		os.Exit(2)
	}
	o.kernels, o.dirs = strings.Split(*versions, ","), flag.Args()[1:]
	ok, err := run(ctx, os.Stdout, tiers[i], o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tier:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

type options struct {
	race     bool
	fuzzTime time.Duration
	kernels  []string // of the tier kernels
	only     string   // pattern of the tests, as go test -run has it; empty: all
	write    bool     // whether the tier kernels writes the page
	table    bool     // whether it runs only the tests that the table rests on
	dirs     []string // of the tier kernels: packages, where ./a/... stands for all below; none: all
}

// run runs the tier and prints its closing line.
func run(ctx context.Context, out io.Writer, t tier, o options) (ok bool, err error) {
	start := time.Now()
	fmt.Fprintf(out, "=== %s tier\n", t.name)
	if t.tag == "kernel" {
		// As the programs are built, and as a virtual machine needs its tests: both tiers share the compiled packages.
		if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
			return false, err
		}
	}
	if t.name == "kernels" {
		ok, err := runKernels(ctx, out, t, o)
		fmt.Fprintf(out, "=== %s tier took %s\n", t.name, time.Since(start).Round(100*time.Millisecond))
		return ok, err
	}
	calls, err := t.argLists(o)
	if err != nil {
		return false, err
	}
	r := newReport(out)
	if err := t.runCalls(ctx, r, calls); err != nil {
		return false, err
	}
	c := r.close()
	fmt.Fprintf(out, "=== %s tier took %s\n", t.name, time.Since(start).Round(100*time.Millisecond))
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped\n", t.name, c.passed, c.failed, c.skipped)
	return c.failed == 0 && c.passed > 0, nil
}

// runCalls runs go test with each of the argument lists. The report gets the output of a call when the call has ended, if
// others run beside it.
func (t tier) runCalls(ctx context.Context, r *report, calls [][]string) error {
	test := goTest
	if t.fuzz {
		test = goFuzz
	}
	if t.calls < 2 {
		for _, args := range calls {
			if err := test(ctx, r, args); err != nil {
				return err
			}
		}
		return nil
	}
	var mutex sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.calls)
	for _, args := range calls {
		group.Go(func() error {
			var said bytes.Buffer
			one := newReport(&said)
			err := test(ctx, one, args)
			mutex.Lock()
			defer mutex.Unlock()
			r.add(one, said.Bytes())
			return err
		})
	}
	return group.Wait()
}

// argLists lists the argument lists of go test that make up the tier.
func (t tier) argLists(o options) ([][]string, error) {
	all, err := findTests(".")
	if err != nil {
		return nil, err
	}
	found, err := matching(all, o.only)
	if err != nil {
		return nil, err
	}
	var only []string
	if o.only != "" {
		only = []string{"-run=" + o.only}
	}
	var calls [][]string
	switch {
	case t.fuzz:
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("finding cache folder: %w", err)
		}
		for _, f := range found {
			for _, name := range f.fuzz {
				calls = append(calls, t.call(fuzzArgs(f.dir, name, cache, o.fuzzTime)...))
			}
		}
	case t.tag == "":
		// Those of the module's root read its files one by one, for which the race detector takes ten times as long.
		var plain, raced []string
		for _, dir := range packages(found, "") {
			if o.race && dir != "./." {
				raced = append(raced, dir)
			} else {
				plain = append(plain, dir)
			}
		}
		if len(plain) > 0 {
			calls = append(calls, t.call(slices.Concat(only, plain)...))
		}
		if len(raced) > 0 {
			calls = append(calls, t.call(slices.Concat(only, []string{"-race"}, raced)...))
		}
	default:
		for _, dir := range packages(found, t.tag) {
			which := []string{"-run=" + pattern(found, dir, t.tag)}
			if only != nil { // it may name tests below others, and tests of the unit tier that are compiled with these
				which = append(only, "-skip="+pattern(all, dir, ""))
			}
			calls = append(calls, t.call(slices.Concat([]string{"-tags=" + t.tag + t.with}, which, []string{dir})...))
		}
	}
	return calls, nil
}

func (t tier) call(args ...string) []string {
	return slices.Concat([]string{"test", "-json"}, t.args, args)
}

// fuzzArgs returns the arguments of go test -fuzz, with one difference. go test -fuzz has the compiler instrument every
// package that the test needs, which takes minutes. These arguments instrument only the packages of this module. The
// inputs that fuzzing kept stay in the cache from run to run.
func fuzzArgs(dir, name, cache string, d time.Duration) []string {
	return []string{
		"-run=^$", "-gcflags=./...=-d=libfuzzer", dir, "-args",
		"-test.fuzz=^" + name + "$", "-test.fuzztime=" + d.String(), "-test.parallel=2",
		"-test.fuzzcachedir=" + filepath.Join(cache, "kubediag", "fuzz", dir, name),
	}
}

// goTest runs go test and passes its output to the report. If tests failed, the exit code of go test is no error: the
// report counts them.
func goTest(ctx context.Context, r *report, args []string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.read(out)
	if err := cmd.Wait(); err != nil && (ctx.Err() != nil || r.counts.failed == 0) {
		return fmt.Errorf("running go test: %w", err)
	}
	return nil
}
