// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// programEnv has the test binary be the program.
const programEnv = "KUBEDIAG_TEST_IS_PROGRAM"

func TestMain(m *testing.M) {
	subprocess.Main(registry.Jobs()...)
	if os.Getenv(programEnv) != "" {
		main()
	}
	volumetest.Main(m, kerneltest.Roles{"copy": playCopy, "kubelet": playKubelet, "front": playFront})
}

// playCopy is a process in a mount namespace that is a copy of the test's.
func playCopy(_ []string, ready func(string)) error {
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// playKubelet is a process with the name and the arguments of a kubelet.
func playKubelet(_ []string, ready func(string)) error {
	if err := os.WriteFile("/proc/self/comm", []byte("kubelet"), 0); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// playFront changes /proc by its first argument, and then becomes the program that its second argument names.
func playFront(args []string, _ func(string)) error {
	var err error
	switch args[0] {
	case "own":
		err = sys.NewMount("proc", "/proc", "proc", "")
	case "none":
		err = sys.NewMount("tmpfs", "/proc", "tmpfs", "")
	}
	if err != nil {
		return err
	}
	return syscall.Exec(args[1], args[1:], append(os.Environ(), programEnv+"=1"))
}

// caller is the user who runs the program, and the facts about that user.
type caller struct {
	name string
	proc string // what becomes of /proc before: "as it is", "own" or "none"
	attr func() *syscall.SysProcAttr
	// sees is whether he may look into every process, all whether /proc shows every process.
	sees, all bool
	uid       int
	userns    bool
	limited   bool // whether others have more than is looked at
}

// callers are all of them.
var callers = []caller{
	{name: "root", proc: "as it is", attr: func() *syscall.SysProcAttr { return nil }, sees: true, all: true},
	{name: "nobody", proc: "as it is", attr: nobody, all: true, uid: 65534},
	{name: "root of a user namespace", proc: "as it is", attr: func() *syscall.SysProcAttr {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
		return &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Credential: &syscall.Credential{NoSetGroups: true},
		}
	}, all: true, userns: true},
	{name: "a PID namespace with its own proc", proc: "own", attr: inPIDs, sees: true},
	{name: "a PID namespace with the host's proc", proc: "as it is", attr: inPIDs, sees: true, all: true},
	{name: "no proc", proc: "none", attr: func() *syscall.SysProcAttr { return sys.PrivateMounts(sys.Clone{}) }},
}

func nobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func inPIDs() *syscall.SysProcAttr { return sys.PrivateMounts(sys.Clone{Processes: true}) }

// everything reports whether the caller sees all that others do.
func (c caller) everything() bool { return c.sees && c.all }

// result is the output of the program and its exit status.
type result struct {
	status      int
	out, errors string
}

// start begins to run the program as the caller would.
func (c caller) command(t *testing.T, program, stdin string, args ...string) (*exec.Cmd, *result) {
	t.Helper()
	r := &result{}
	cmd := exec.Command(program, append([]string{c.proc, program}, args...)...)
	cmd.Env, cmd.SysProcAttr, cmd.Dir = append(kerneltest.RoleEnv("front"), "XDG_RUNTIME_DIR="+c.runtimeDir(t, program)), c.attr(), "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), (*text)(&r.out), (*text)(&r.errors)
	return cmd, r
}

// runtimeDir is where the caller's scans are kept, if root owns them.
func (c caller) runtimeDir(t *testing.T, program string) string {
	t.Helper()
	dir := program + " of " + c.name
	must(t, os.MkdirAll(dir, 0o755))
	if c.userns { // root there would else look at the machine's own
		must(t, os.Chown(dir, 65534, 65534))
	}
	return dir
}

// run runs the program. Another test on the machine may have very many mounts, or a process that does not answer. Then the program could not
// look at everything, and run starts it again until it can, unless it has repaired something.
func (c caller) run(t *testing.T, program, stdin string, args ...string) *result {
	t.Helper()
	for deadline := time.Now().Add(kerneltest.Patience(2 * time.Minute)); ; {
		cmd, r := c.command(t, program, stdin, args...)
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		r.status = cmd.ProcessState.ExitCode()
		if said := r.out + r.errors; !strangers.MatchString(said) || repaired.MatchString(said) || time.Now().After(deadline) {
			return r
		}
	}
}

// strangers is said of mounts and processes that the tests of this package do not have: those of others on the machine.
var strangers = regexp.MustCompile(`there are more of them than are looked at` +
	`|waited up to \S+ for process \d+ \(kubelet\), in vain|see what these processes wait for: ps`)

// repaired is said, as text or in JSON, if a mount was changed.
var repaired = regexp.MustCompile(`: healed|"healed": [1-9]|"result": "(?:Done|Healed)"`)

// text collects the output.
type text string

func (t *text) Write(p []byte) (int, error) { *t += text(p); return len(p), nil }

var _ io.Writer = (*text)(nil)

var must = kerneltest.Must

func tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// daemon is a FUSE daemon, and where the kubelet has its volume.
type daemon struct {
	*kerneltest.Actor
	point string
	minor string // of the device, which is the number of the connection
}

// scenery is a node on which sentences can be false.
type scenery struct {
	*kubelettest.Scene
	program             string
	stale               string // a subPath bind whose source was deleted
	live, dead, stopped daemon
	device, copied      string // a loop device, and where another namespace has it
	holder              *kerneltest.Actor
}

func newScenery(t *testing.T) *scenery {
	t.Helper()
	s := &scenery{Scene: kubelettest.New(t)}
	must(t, os.Chmod(filepath.Dir(filepath.Dir(filepath.Dir(s.Root))), 0o755)) // that of all temporary files of the test
	s.program = program(t)
	pod := kubelettest.NewPod()
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "one"})
	s.stale = s.Point(pod, "configmap", "app", 0)
	s.Stack(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "app.ini"), s.stale)
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
	s.live, s.dead, s.stopped = s.daemon(t, pod, "live"), s.daemon(t, pod, "dead"), s.daemon(t, pod, "stopped")
	s.dead.Kill()
	must(t, syscall.Kill(s.stopped.PID, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(s.stopped.PID, syscall.SIGCONT) })
	s.loop(t)
	return s
}

// program is the test binary at a path where every user may run it.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chmod(dir, 0o755))
	name := filepath.Join(dir, "kubediag")
	tool(t, "cp", "/proc/self/exe", name)
	if own, err := os.Executable(); err == nil {
		tool(t, "cp", own, name)
	}
	must(t, os.Chmod(name, 0o755))
	return name
}

func (s *scenery) daemon(t *testing.T, pod *corev1.Pod, name string) daemon {
	t.Helper()
	d := daemon{point: s.Node.VolumePoint(kubelet.Volume{PodUID: string(pod.UID), Plugin: kubelet.CSIPlugin, Name: name})}
	must(t, os.MkdirAll(d.point, 0o755))
	d.Actor = kerneltest.FUSE(t, d.point)
	state, err := mount.Inspect(d.point)
	must(t, err)
	d.minor = strconv.Itoa(int(state.Minor))
	return d
}

// loop has a copy of a mount that the kubelet has unmounted hold a loop device.
func (s *scenery) loop(t *testing.T) {
	t.Helper()
	s.device = newExt4(t)
	s.copied = filepath.Join(s.Root, "plugins/kubernetes.io/local-volume/mounts/pv-1")
	must(t, os.MkdirAll(s.copied, 0o755))
	must(t, sys.NewMount(s.device, s.copied, "ext4", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(s.copied, true) })
	s.holder = kerneltest.Start(t, "copy")
	must(t, systest.UnmountPath(s.copied, false))
}

// newImage is an empty file for a file system.
func newImage(t *testing.T, size int64) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)))
	return image
}

// newExt4 is a loop device with an ext4.
func newExt4(t *testing.T) string {
	t.Helper()
	device := attach(t, newImage(t, 16<<20))
	tool(t, "mkfs.ext4", "-q", device)
	return device
}

// attach returns a loop device of an image, which goes with the test.
func attach(t *testing.T, image string) string {
	t.Helper()
	device := devicetest.Attach(t, image)
	t.Cleanup(func() { tool(t, "losetup", "--detach", device) })
	return device
}

// verbCall is a verb that is run, and how it is to end for a caller who sees everything, and for one who does not.
type verbCall struct {
	args              []string
	stdin             string
	full, part, blind int // status; blind where /proc is missing
}

func (s *scenery) verbs() []verbCall {
	root := "--kubelet-root=" + s.Root
	return []verbCall{
		{[]string{"scan", root}, "", 1, 2, 2},
		{[]string{"scan", "-v", root}, "", 1, 2, 2},
		{[]string{"scan", "--brief", root}, "", 1, 2, 2},
		{[]string{"show", "1"}, "", 0, 0, 2},
		{[]string{"recover", "--dry-run", root}, "", 1, 2, 2},
		{[]string{"release", "--dry-run", root, s.device}, "", 1, 2, 2},
		{[]string{"diagnose", root}, "", 1, 2, 2},
		{[]string{"explain", "hung"}, "", 0, 0, 0},
		{[]string{"probe", s.stale}, "", 1, 1, 2},
		{[]string{"probe", s.live.point}, "", 0, 2, 2},
		{[]string{"probe", s.dead.point}, "", 1, 1, 2},
		{[]string{"probe", s.stopped.point}, "", 1, 1, 2},
		{[]string{"holders", root}, "", 1, 2, 2},
		{[]string{"holders", root, s.device}, "", 1, 2, 2},
		{[]string{"decode"}, "[104 105]\n", 0, 0, 0},
		{[]string{"features"}, "", 0, 0, 0},
		{[]string{"lint", "-f", "-"}, "kind: Pod\napiVersion: v1\nspec: {}\n", 0, 0, 0},
		{[]string{"bundle", root, "-o", "-"}, "", 0, 0, 2},
		{[]string{"demo"}, "", 0, 0, 2},
		{[]string{"version"}, "", 0, 0, 0},
		{[]string{"help"}, "", 0, 0, 0},
		{[]string{"completion"}, "", 0, 0, 0},
		{[]string{"scan"}, "", -1, 2, 2},
	}
}

// TestOutputIsTrueForEachUser runs every verb as each of the callers, and checks each part of its output.
func TestOutputIsTrueForEachUser(t *testing.T) {
	s := newScenery(t)
	for _, c := range callers {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, v := range s.verbs() {
				s.check(t, c, v, c.run(t, s.program, v.stdin, v.args...))
			}
		})
	}
}

// TestEveryVerbIsRun has no verb be left out.
func TestEveryVerbIsRun(t *testing.T) {
	s := &scenery{Scene: &kubelettest.Scene{}, program: program(t)}
	run := map[string]bool{}
	for _, v := range s.verbs() {
		run[v.args[0]] = true
	}
	help := callers[0].run(t, s.program, "", "--help")
	_, rest, _ := strings.Cut(help.out, "Start here:\n")
	rest, _, _ = strings.Cut(rest, "\nFlags:")
	verbs := regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(rest, -1)
	for _, v := range verbs {
		if !run[v[1]] {
			t.Errorf("verb %q is run by nobody", v[1])
		}
	}
	if len(verbs) < len(run) || !strings.HasPrefix(help.out, "Start with: sudo kubediag scan\n") {
		t.Errorf("%d of %d verbs in\n%s", len(verbs), len(run), help.out)
	}
}

// linesOf are the lines of a text without those that are empty.
func linesOf(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func (r *result) String() string {
	return fmt.Sprintf("status %d\n%s%s", r.status, r.out, bytes.TrimSpace([]byte(r.errors)))
}
