// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// maxFile bounds the bytes that are read from a process' file or a kubelet's configuration.
const maxFile = 1 << 20

// candidateProcess is a process that may be a kubelet, with the arguments that the kubelet in it has.
type candidateProcess struct {
	pid     int
	program string // its name, as /proc/PID/comm has it
	args    []string
	dir     string // /proc/PID
	started string // when it started, in the kernel's ticks: a number that is used again has another
	mounts  string // its mount namespace, as /proc/PID/ns/mnt has it; empty if that may not be read
}

// rootPrefix leads to the root directory of the process.
func (p candidateProcess) rootPrefix() string { return p.dir + "/root" }

// identityKey names the process, also if its number is used again.
func (p candidateProcess) identityKey() string { return p.dir + " " + p.started }

// maxNameBytes is more than the length of a program's name and a newline.
const maxNameBytes = 64

func (p *candidateProcess) loadName() error {
	var name [maxNameBytes]byte
	comm, err := sys.ReadPathHead(p.dir+"/comm", name[:])
	p.program = strings.TrimSpace(string(comm))
	return err
}

// identify reads the facts that distinguish the process from another. A process that runs another program by now is another.
// The error is procfs.ErrSilent if it does not answer.
func (p candidateProcess) identify() (candidateProcess, error) {
	return procfs.Ask(p.pid, func() (candidateProcess, error) {
		err := p.loadName()
		if err != nil {
			return p, err
		}
		p.mounts, _ = os.Readlink(p.dir + "/ns/mnt") // empty: it shares its place with no other process
		p.started, err = readStartTime(p.dir)
		return p, err
	})
}

// isAlive reports whether the identified process is there, and still runs the same program in the same mount
// namespace. A process that does not answer is there.
func (p *candidateProcess) isAlive() bool {
	now, err := candidateProcess{pid: p.pid, dir: p.dir}.identify()
	return errors.Is(err, procfs.ErrSilent) || err == nil && now.started == p.started && now.program == p.program && now.mounts == p.mounts
}

// String names the process for people.
func (p candidateProcess) String() string { return fmt.Sprintf("process %d (%s)", p.pid, p.program) }

// podCgroup matches the name of the control group of a pod, by its UID. The UID of a static pod has no dashes.
var podCgroup = regexp.MustCompile(`(^|-)pod[0-9a-f]{8}([-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}(\.slice)?$`)

// foreignReason says why the process cannot be the kubelet of our host, with any name; empty: it may be. self is
// our own directory below /proc. A workload can choose neither the owner of its user namespace nor its control group. A
// whole node may run in a pod, and we in that.
func (p *candidateProcess) foreignReason(self string) string {
	own, errOwn := os.Readlink(self + "/ns/user")
	theirs, err := os.Readlink(p.dir + "/ns/user")
	if errOwn == nil && err == nil && own != theirs { // else we may not look into it
		return "is in another user namespace"
	}
	around := map[string][]string{} // our control groups by hierarchy
	text, _ := readFile(self + "/cgroup")
	for line := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(f) == 3 {
			around[f[1]] = strings.Split(f[2], "/")
		}
	}
	text, _ = readFile(p.dir + "/cgroup") // empty: it has ended
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		names, ours := strings.Split(f[2], "/"), around[f[1]]
		for len(names) > 0 && len(ours) > 0 && names[0] == ours[0] { // the pod around us, if there is one
			names, ours = names[1:], ours[1:]
		}
		if slices.ContainsFunc(names, podCgroup.MatchString) {
			return "runs in a pod"
		}
	}
	return ""
}

var errNoArguments = errors.New("does not show its arguments")

// loadArguments reads the arguments, and those that MicroK8s keeps in a file and that k3s hands on.
func (p *candidateProcess) loadArguments() error {
	cmdline, err := readFile(p.dir + "/cmdline")
	if err != nil {
		return err
	}
	if cmdline == "" { // it ends, or becomes another program, or has them where the kernel does not look
		return errNoArguments
	}
	p.args = strings.Split(strings.TrimSuffix(cmdline, "\x00"), "\x00")
	if file := flagValue(p.args, "kubelet-args-file"); file != "" {
		content, _ := p.readInRoot(file)           // where it cannot be read, it adds no argument
		environ, _ := readFile(p.dir + "/environ") // where it cannot be read, variables stay empty and the root is not found
		values := map[string]string{}
		for entry := range strings.SplitSeq(environ, "\x00") {
			name, value, _ := strings.Cut(entry, "=")
			values[name] = value
		}
		p.args = append(p.args, strings.Fields(os.Expand(content, func(name string) string { return values[name] }))...)
	}
	given := p.args
	for i, arg := range given { // --kubelet-arg=root-dir=/data means --root-dir=/data
		handedOn, ok := strings.CutPrefix(arg, "--kubelet-arg=")
		if arg == "--kubelet-arg" && i+1 < len(given) {
			handedOn, ok = given[i+1], true
		}
		if ok {
			p.args = append(p.args, "--"+handedOn)
		}
	}
	return nil
}

// kubeletPrograms that have a kubelet in them.
var kubeletPrograms = []string{"kubelite", "hyperkube", "k3s", "k3s-server", "k3s-agent"}

// kubeletName matches the name of a kubelet: its version may be in it. Any other name that begins so is another
// program, such as kubelet-csr-approver.
var kubeletName = regexp.MustCompile(`^kubelet([-_.]?v?[0-9].*)?$`)

func (p *candidateProcess) isKubelet() bool {
	words := strings.Fields(strings.Join(p.args, " "))
	switch p.program {
	case "hyperkube":
		return slices.Contains(words, "kubelet")
	case "k3s":
		return slices.Contains(words, "server") || slices.Contains(words, "agent")
	}
	return true
}

// rootArgument is the kubelet's root directory as its arguments have it.
func (p *candidateProcess) rootArgument() string {
	if root := flagValue(p.args, "root-dir"); root != "" {
		return root
	}
	return DefaultRoot
}

// flagValue is the last value of --name, in both of its forms.
func flagValue(args []string, name string) (value string) {
	for i, arg := range args {
		if arg == "--"+name && i+1 < len(args) {
			value = args[i+1]
		}
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value = v
		}
	}
	return value
}

func readStartTime(dir string) (string, error) {
	text, err := sys.ReadPathHead(dir+"/stat", nil)
	if err != nil {
		return "", fmt.Errorf("read %q: %w", path.Join(dir, "stat"), err)
	}
	stat, err := sys.ParseProcStat(text)
	if err != nil {
		return "", fmt.Errorf("read start time in %q: %w", path.Join(dir, "stat"), err)
	}
	return stat.Started, nil
}

// readFile reads a file of the process file system.
func readFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(content), err
}

// readInRoot reads a file as the process sees it. Any process can call itself a kubelet and name any file. So only files
// with data are opened: a pipe would make us wait, and a device may act when it is opened.
func (p *candidateProcess) readInRoot(name string) (string, error) {
	f, err := sys.OpenIn(p.rootPrefix(), name)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: p.rootPrefix() + name, Err: err}
	}
	defer f.Close()
	function, err := f.IsPseudoFS()
	if err == nil && function {
		err = sys.EINVAL
	}
	var content []byte
	if err == nil {
		content, err = sys.ReadHead(f, maxFile)
	}
	if err != nil {
		return "", fmt.Errorf("read %q: %w", p.rootPrefix()+name, err)
	}
	return string(content), nil
}
