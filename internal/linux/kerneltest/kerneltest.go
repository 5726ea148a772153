// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kerneltest runs the kernel tier of this module's tests: as root, on
// real mounts, in a mount namespace that no other process sees, with a check that
// nothing stays open afterwards. It is for tests alone.
//
// It rests on mount_namespaces(7). It does not skip: without root it fails, so that a green run proves its tests.
package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

const (
	insideEnv = "KUBEDIAG_KERNELTEST_INSIDE"
	roleEnv   = "KUBEDIAG_KERNELTEST_ROLE"
)

// Main is for TestMain. It starts the test binary once more in a private mount
// namespace, runs the tests there and exits with their status. The locale there
// is C.UTF-8, and not that of the caller. A process that Start made runs the role
// it was made for instead.
func Main(m *testing.M, roles Roles) {
	roles.Play()
	Isolate()
	before := takeInventory()
	status := m.Run()
	if status == 0 {
		status = before.compare()
	}
	os.Exit(status)
}

// Isolate returns in a process with its own mount namespace, without the mounts of others below the directory for
// temporary files. It starts this program once more in such a namespace, and the caller exits with its status.
func Isolate() {
	if os.Getenv(insideEnv) == "" {
		os.Exit(reexec())
	}
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		fail("make mounts private", err)
	}
	if err := stripTemp(); err != nil {
		fail("unmount what is others'", err)
	}
}

// Run is a number that the processes of this run of the tests share, and that no other run of the machine has meanwhile; 0 outside
// Isolate.
func Run() int {
	number, _ := strconv.Atoi(os.Getenv(insideEnv))
	return number
}

// stripTemp removes, in this namespace, the mounts of others below the directory for temporary files: when they remove
// the directory that a mount is on, the kernel takes the mount away everywhere, and copies of theirs would come and go
// among ours.
func stripTemp() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if point := unescaped.Replace(f[4]); strings.HasPrefix(point, os.TempDir()+"/") {
			_ = systest.UnmountPath(point, true) // its parent may have gone with it
		}
	}
	return nil
}

// unescaped has the characters that mountinfo escapes: seq_path(9) in the kernel's fs/proc_namespace.c.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "kernel test: %s: %v\n", what, err)
	os.Exit(1)
}

// reexec runs this binary again in a mount namespace of its own and gives its
// exit status. The child dies with us.
func reexec() int {
	if os.Geteuid() != 0 {
		fail("start", fmt.Errorf("needs root, runs as user %d: %w", os.Geteuid(), sys.EPERM))
	}
	runtime.LockOSThread() // this thread's death ends the child
	attr := sys.PrivateMounts(sys.Clone{})
	attr.Pdeathsig = 9
	p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), insideEnv+"="+strconv.Itoa(os.Getpid()), "LC_ALL=C.UTF-8", "COLUMNS=", "NO_COLOR="),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   attr,
	})
	if err != nil {
		fail("start in private namespace", err)
	}
	state, err := p.Wait()
	if err != nil {
		fail("wait", err)
	}
	if !state.Exited() {
		return 1
	}
	return state.ExitCode()
}

// inventory holds the descriptors and goroutines of a process.
type inventory struct {
	files      map[string]string
	goroutines int
}

// takeInventory first opens the files that the process opens once and keeps.
func takeInventory() inventory {
	if _, err := sys.Procfs(); err != nil {
		fail("open proc", err)
	}
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller
		r.Close()
		w.Close()
	}
	return inventory{files: openFiles(), goroutines: runtime.NumGoroutine()}
}

func openFiles() map[string]string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		fail("list descriptors", err)
	}
	files := map[string]string{}
	for _, e := range entries {
		// The descriptor of the listing itself is gone by now.
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files[e.Name()] = link
		}
	}
	return files
}

// compare returns 1, and prints the rest, if descriptors or goroutines stay: half a minute is enough for those that are
// about to go.
func (before inventory) compare() int {
	var left []string
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left = before.left()
		if len(left) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			break
		}
	}
	fmt.Fprintf(os.Stderr, "kernel test: left behind:\n%s\n", strings.Join(left, "\n"))
	return 1
}

func (before inventory) left() []string {
	var left []string
	for fd, link := range openFiles() {
		if before.files[fd] == "" && !strings.HasPrefix(link, "anon_inode:[event") {
			left = append(left, "descriptor "+fd+" of "+link)
		}
	}
	if runtime.NumGoroutine() > before.goroutines {
		stacks := make([]byte, 64<<10)
		left = append(left, string(stacks[:runtime.Stack(stacks, true)]))
	}
	return left
}

// Lacks is the attribute of a test that was skipped, whose value names the feature that the kernel lacks.
const Lacks = "lacks"

// PatienceEnv names the variable by which an emulated machine says how many times as much time tests are to give.
const PatienceEnv = "KUBEDIAG_TEST_PATIENCE"

// Patience returns for how long a test waits for an answer that is to come: d, or as much more as an emulated machine needs.
func Patience(d time.Duration) time.Duration { return d * time.Duration(emulated()) }

// RoundsEnv names the variable by which a tier that has the time says how many rounds a test of random scenes makes.
const RoundsEnv = "KUBEDIAG_TEST_ROUNDS"

// Rounds returns how many rounds a test of random scenes makes: n, or as many as RoundsEnv says.
func Rounds(n uint64) uint64 {
	if more, err := strconv.ParseUint(os.Getenv(RoundsEnv), 10, 64); err == nil {
		return more
	}
	return n
}

// Fewer returns how many of a thing a test of load makes: n, or as much fewer as an emulated machine is slower.
func Fewer(n int) int { return n / emulated() }

// Emulated reports whether the machine is an emulated one.
func Emulated() bool { return emulated() > 1 }

// emulated returns how many times slower than this machine the one is that the tests run in, at least 1.
func emulated() int {
	times, err := strconv.Atoi(os.Getenv(PatienceEnv))
	if err != nil {
		return 1
	}
	return max(times, 1)
}

// Needs skips the test if the kernel lacks the feature, by name. It fails the test if that is unknown, and if the kernel is new enough to
// have the feature: then the probe is broken, or the kernel was built without it.
func Needs(t testing.TB, f *sys.Feature) {
	t.Helper()
	err := f.Probe()
	var lacks *sys.UnsupportedError
	if errors.As(err, &lacks) {
		if release := sys.Release(); f.IsDue(release) {
			t.Fatalf("Linux %s has no %s, which Linux %s has brought", release, lacks.Feature, lacks.Kernel)
		}
		t.Attr(Lacks, fmt.Sprintf("%s (Linux %s)", lacks.Feature, lacks.Kernel))
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Must fails the test for an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
