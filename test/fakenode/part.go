// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// partEnv says in a process that a node has started which part it runs.
const partEnv = "KUBEDIAG_STAGE_PART"

// parts are what other processes of a node do, by name. A part calls ready when it has set its scene, with what the
// node has to know, and then waits for its standard input to end.
var parts = map[string]func(args []string, ready func(answer string)) error{
	"server": serve, "container": contain,
}

// play plays a part and gives the exit status.
func play(name string, args []string) int {
	part, ok := parts[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "stage: unknown part %q\n", name)
		return 1
	}
	if err := part(args, func(answer string) { fmt.Println("ready " + answer) }); err != nil {
		fmt.Fprintf(os.Stderr, "stage: part %q: %v\n", name, err)
		return 1
	}
	return 0
}

// untilEnd is how a part waits for the end of its test.
func untilEnd() { _, _ = io.Copy(io.Discard, os.Stdin) }

// actor is a process that plays a part. It ends with the test.
type actor struct {
	*exec.Cmd
	stdin  io.Closer
	answer string // what it said when it was ready
}

// startActor plays a part in a process made with attr, and waits until it is ready.
func startActor(t testing.TB, attr *syscall.SysProcAttr, part string, args ...string) *actor {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), partEnv+"="+part)
	cmd.SysProcAttr, cmd.Stderr = attr, os.Stderr
	attr.Pdeathsig = syscall.SIGKILL
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, start(t.Context(), cmd))
	a := &actor{Cmd: cmd, stdin: stdin}
	t.Cleanup(a.kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	answer, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "ready ")
	if err != nil || !ok {
		t.Fatalf("part %q is not ready: %q, %v", part, line, err)
	}
	a.answer = answer
	return a
}

// kill ends the process at once, as a crash would, and waits until it is gone.
func (a *actor) kill() {
	if a.ProcessState == nil {
		_ = a.Process.Kill() // also one that is stopped
		_ = a.Wait()
	}
}
