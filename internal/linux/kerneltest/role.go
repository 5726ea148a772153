// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// Roles are the functions of other processes of a test, by name. A role calls ready when its scene is set, with an
// answer for the test. Then it usually waits for the end of its standard input, which comes when the test is over.
type Roles map[string]func(args []string, ready func(answer string)) error

// Play plays the role that this process was made for, and does not return then. It
// is for a TestMain that does not call Main.
func (r Roles) Play() {
	if name := os.Getenv(roleEnv); name != "" {
		os.Exit(r.play(name, os.Args[1:]))
	}
}

// play runs a role and gives the exit status.
func (r Roles) play(name string, args []string) int {
	role, ok := r[name]
	if own := (Roles{fuseRole: serveFUSE, floodRole: flood, copyRole: floodCopy})[name]; own != nil {
		role, ok = own, true
	}
	if !ok {
		fmt.Fprintf(os.Stderr, "kernel test: unknown role %q\n", name)
		return 1
	}
	ready := func(answer string) { fmt.Println("ready " + answer) }
	if err := role(args, ready); err != nil {
		fmt.Fprintf(os.Stderr, "kernel test: role %q: %v\n", name, err)
		return 1
	}
	return 0
}

// RoleEnv is an environment in which the test binary plays a role, for roles
// that start others themselves.
func RoleEnv(role string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, roleEnv+"=") })
	return append(env, roleEnv+"="+role)
}

// WaitForEnd is how a role waits for the end of its test.
func WaitForEnd() { io.Copy(io.Discard, os.Stdin) }

// Hold is a role with the mounts that its namespace begins with.
func Hold(_ []string, ready func(string)) error {
	ready("")
	WaitForEnd()
	return nil
}

// HoldPrivately is a role with a copy of all mounts of its own, such as a daemon's.
func HoldPrivately(_ []string, ready func(string)) error {
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	return Hold(nil, ready)
}

// MoveOverRoot mounts a file system beside dir and makes it the root of this process, as runtimes do that must not pivot.
func MoveOverRoot(dir string) error {
	root, err := os.MkdirTemp(filepath.Dir(dir), "root")
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return sys.NewMount("root", root, "tmpfs", "") },
		func() error { return os.Chdir(root) },
		func() error { return systest.MoveMountTo(".", "/") },
		func() error { return systest.Chroot(".") },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// Actor is a process that plays a role. It ends with the test.
type Actor struct {
	PID    int
	Answer string // the answer of the role when it was ready

	process *os.Process
	stdin   *os.File
}

// Start plays a role in a process with a mount namespace of its own, which
// begins as a private copy of the test's, and waits until it is ready.
func Start(t testing.TB, role string, args ...string) *Actor {
	t.Helper()
	return StartWith(t, sys.PrivateMounts(sys.Clone{}), role, args...)
}

// StartWith plays a role in a process made with attr; nil leaves it in the
// test's mount namespace.
func StartWith(t testing.TB, attr *sys.ProcAttr, role string, args ...string) *Actor {
	t.Helper()
	in, stdin := pipe(t)
	stdout, out := pipe(t)
	p, err := os.StartProcess("/proc/self/exe", append([]string{os.Args[0]}, args...), &os.ProcAttr{
		Env:   RoleEnv(role),
		Files: []*os.File{in, out, os.Stderr},
		Sys:   attr,
	})
	in.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	a := &Actor{PID: p.Pid, process: p, stdin: stdin}
	t.Cleanup(a.End)
	defer stdout.Close()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	answer, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "ready ")
	if err != nil || !ok {
		t.Fatalf("role %q not ready: %q, %v", role, line, err)
	}
	a.Answer = answer
	return a
}

// End ends the role and waits for its process.
func (a *Actor) End() {
	if a.stdin == nil {
		return
	}
	a.stdin.Close()
	a.stdin = nil
	a.process.Wait()
}

// Kill ends the process at once, as a crash would.
func (a *Actor) Kill() {
	a.process.Kill()
	a.End()
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}
