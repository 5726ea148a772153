// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package matrix runs compiled tests on other kernels, each in the folder of its package, and gives their output as go test -json
// does. It is for tests alone.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/lock"
	"kubediag.org/kubediag/test/program"
	"kubediag.org/kubediag/test/subpath"
	"kubediag.org/kubediag/test/vm"
)

// patience is how many times as long an emulated machine may take for what others do in seconds.
const patience = "5"

// Rounds is how many rounds a test of random scenes makes on each kernel.
const Rounds = "200"

// Suite is the tests of one package.
type Suite struct {
	Dir     string // of the package, from the root of the module: internal/linux/probe
	Pattern string // of -test.run
}

// Build is the tests of a module, compiled.
type Build struct {
	dir  string
	turn *os.File
}

// Close lets others use the folder.
func (b *Build) Close() error { return b.turn.Close() }

// packages are what the tests need of Debian beside the basic ones.
var packages = []string{
	"bsdutils", "btrfs-progs", "crun", "dmsetup", "lsof", "nfs-common", "nfs-kernel-server", "psmisc", "rpcbind", "strace", "xfsprogs",
}

// modules are what the kernel loads by itself on a machine with udev, or on a node.
var modules = []string{"overlay", "zram", "xfs", "squashfs", "btrfs", "dm_mod", "nfs", "nfsv3", "nfsv4", "nfsd"}

// programs are those of the module that tests run, and cannot build in the guest.
var programs = []string{"cmd/agent", "cmd/kubediag"}

// Compile compiles the tests of the packages, and the programs that they run, into dir, where it finds what it did before. The
// current folder is the root of the module. No other process uses dir until the build is closed.
func Compile(ctx context.Context, dir, tag string, suites []Suite) (_ *Build, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	turn, err := lock.Take(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return nil, err
	}
	b := &Build{dir, turn}
	defer func() {
		if err != nil {
			turn.Close()
		}
	}()
	for _, s := range suites {
		if err := goRun(ctx, "test", "-c", "-trimpath", "-ldflags=-s -w", "-tags="+tag, "-o", b.test(s), "./"+s.Dir); err != nil {
			return nil, fmt.Errorf("compile tests of %s: %w", s.Dir, err)
		}
	}
	for _, p := range programs {
		if err := goRun(ctx, "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "programs")+"/", "./"+p); err != nil {
			return nil, fmt.Errorf("compile %s: %w", p, err)
		}
	}
	for _, version := range subpath.Versions {
		if err := subpath.Build(ctx, version, filepath.Join(dir, "programs")); err != nil {
			return nil, err
		}
	}
	// Folders of testdata hold what tests read, and some read the sources.
	src := filepath.Join(dir, "src")
	if err := errors.Join(os.RemoveAll(src), os.MkdirAll(src, 0o755)); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", "tar -c --exclude=./.git --exclude=./bin --exclude=./dist . | tar -x -C \"$1\"", "sh", src).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("copy sources: %w\n%s", err, out)
	}
	return b, nil
}

func goRun(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func (b *Build) test(s Suite) string {
	return filepath.Join(b.dir, "tests", strings.ReplaceAll(s.Dir, "/", "_")+".test")
}

// boots bounds how often a machine is started again because it was lost.
const boots = 4

// Run runs the suites on a kernel, one after the other, and writes to out what go test -json would have said. A suite whose
// machine was lost, or that did not end within the limit, has failed; the next finds a machine that has just started.
func (b *Build) Run(ctx context.Context, kernel string, suites []Suite, limit time.Duration, out io.Writer) error {
	var m *vm.Machine
	defer func() {
		if m != nil {
			_ = m.Close() // all of it is in a folder for temporary files
		}
	}()
	started := 0
	for _, s := range suites {
		if m == nil {
			if started++; started > boots {
				return fmt.Errorf("run tests on kernel %s: the machine was lost %d times", kernel, boots)
			}
			var err error
			begin := time.Now()
			if m, err = b.start(ctx, kernel, suites); err != nil {
				return err
			}
			fmt.Fprintf(out, "kernel %s: %s is up after %s\n", kernel, m.Release(), time.Since(begin).Round(100*time.Millisecond))
		}
		lost, err := session{kernel, limit, out}.run(ctx, m, s)
		if err != nil {
			return err
		}
		if lost {
			_ = m.Close()
			m = nil
		}
	}
	return nil
}

func (b *Build) start(ctx context.Context, kernel string, suites []Suite) (*vm.Machine, error) {
	files := map[string]string{"/src": filepath.Join(b.dir, "src"), "/programs": filepath.Join(b.dir, "programs")}
	for _, s := range suites {
		files["/tests/"+filepath.Base(b.test(s))] = b.test(s)
	}
	return vm.Start(ctx, vm.Options{Kernel: kernel, Packages: packages, Modules: modules, Files: files})
}

// session runs suites on a kernel, each within the limit, and writes what go test -json would.
type session struct {
	kernel string
	limit  time.Duration
	out    io.Writer
}

// run runs one suite. It says whether the machine is of no use any more.
func (r session) run(ctx context.Context, m *vm.Machine, s Suite) (lost bool, err error) {
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", r.kernel+" "+s.Dir)
	convert.Stdout, convert.Stderr = r.out, os.Stderr
	in, err := convert.StdinPipe()
	if err != nil {
		return false, err
	}
	if err := convert.Start(); err != nil {
		return false, fmt.Errorf("start test2json: %w", err)
	}
	ran := m.Do(ctx, vm.Command{
		Args: []string{
			"/tests/" + filepath.Base((&Build{}).test(s)), "-test.v=test2json", "-test.run=" + s.Pattern, "-test.paniconexit0",
			"-test.timeout=" + r.limit.String(),
		},
		Dir: "/src/" + s.Dir, Env: []string{program.Env + "=/programs", kerneltest.PatienceEnv + "=" + patience, kerneltest.RoundsEnv + "=" + Rounds}, Out: in,
		Limit: r.limit + 20*time.Second, // the program of the tests ends itself before
	})
	if ran != nil {
		var exit *vm.ExitError
		lost = !errors.As(ran, &exit) || exit.Failed != ""
		fmt.Fprintf(in, "\n%v\nFAIL\n", ran)
	}
	_ = in.Close() // a pipe's that is closed already says so
	return lost, errors.Join(convert.Wait(), context.Cause(ctx))
}
