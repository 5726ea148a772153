// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// overlayTrapRole is a role: an overlay of args[1], which is a directory of a FUSE file system, below args[0], and a
// bind of args[2] in that. The directories of the overlay are not remembered.
func overlayTrapRole(args []string, ready func(string)) error {
	err := errors.Join(sys.SetPropagation("/", sys.Private, true), sys.NewMount("trap", args[0], "tmpfs", ""))
	for _, dir := range []string{"o", "empty"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(args[0], dir), 0o755))
	}
	merged := filepath.Join(args[0], "o")
	err = errors.Join(err, sys.NewMount("o", merged, "overlay", "lowerdir="+args[1]+":"+filepath.Join(args[0], "empty")),
		sys.BindMount(args[2], filepath.Join(merged, "sub")))
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// fuseRootRole is a role: a process whose root is the FUSE file system at args[0], with a bind of args[1] in it.
func fuseRootRole(args []string, ready func(string)) error {
	err := errors.Join(sys.SetPropagation("/", sys.Private, true), sys.BindMount(args[0], args[0]),
		sys.BindMount(args[1], filepath.Join(args[0], "vol/sub")))
	if err != nil {
		return err
	}
	if out, err := exec.Command("pivot_root", args[0], filepath.Join(args[0], "old")).CombinedOutput(); err != nil {
		return fmt.Errorf("pivot_root: %w: %s", err, out)
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// inspectRole is a role: it looks at all volumes below the kubelet's root args[0] again and again, and says what it has
// found.
func inspectRole(args []string, ready func(string)) error {
	node, err := kubelet.Local(args[0])
	if err != nil {
		return err
	}
	i := &volume.Inspector{
		Kubelet: node, Prober: &probe.Prober{Deadline: 2 * time.Second}, Runner: &subprocess.Runner{},
		Runtime: &oneContainerRuntime{of: &cri.Owner{ContainerID: "c1", Container: "app", PodUID: args[2]}}, // for every process
	}
	answers, err := os.OpenFile(args[1], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer answers.Close()
	go func() {
		kerneltest.WaitForEnd()
		os.Exit(0)
	}()
	ready("")
	for {
		began := time.Now()
		survey, err := i.Inspect(context.Background(), mountstate.Scope{}) //nolint:forbidigo // it runs in a process that has no test
		if err != nil {
			return err
		}
		codes := map[string]fault.Code{}
		for _, v := range survey.Volumes {
			codes[v.Evidence.Name] = v.Verdict.Code
		}
		if _, err := fmt.Fprintln(answers, time.Since(began).Milliseconds(), codes); err != nil {
			return err
		}
	}
}

// TestAttackersCannotBlockTheInspection has everything hang that the look meets in mount namespaces of others, and
// beside them. The threads of the process that looks are asked for meanwhile whether one waits for any of it.
func TestAttackersCannotBlockTheInspection(t *testing.T) {
	s := newScene(t, deepDir)
	base := t.TempDir()
	slow := kerneltest.StartWith(t, nil, "serve", base, "slow", "vol/sub", "old")
	t.Cleanup(func() { _ = systest.UnmountPath(base, true) })
	at := t.TempDir()
	kerneltest.Start(t, "trap", at, filepath.Join(base, "vol"), s.Point)
	kerneltest.Start(t, "rooted", base, s.Point)
	logs := t.TempDir() // in place of /var/log, which may have none of pods
	s.must(os.Mkdir(filepath.Join(logs, "pods"), 0o755))
	s.must(sys.BindMount(logs, "/var/log"))
	t.Cleanup(func() { _ = systest.UnmountPath("/var/log", true) })
	s.must(sys.BindMount(base, "/var/log/pods"))
	t.Cleanup(func() { _ = systest.UnmountPath("/var/log/pods", true) })
	t.Cleanup(slow.Kill) // first of all, so that nothing is left that waits
	answers, pipe := openFIFO(t)
	s.Elsewhere("mv", "csi.vol1", "gone") // the volume is broken: its copies are looked for, and asked
	s.Elsewhere("make", "csi.vol1", "new")
	signal(t, slow.PID, "STOP")
	looker := kerneltest.StartWith(t, nil, "look", s.Node.Root, answers, string(s.Pod.UID))
	stop := kerneltest.NobodyWaits(t, looker.PID)
	lines := bufio.NewReader(pipe)
	for range 3 {
		s.must(pipe.SetReadDeadline(time.Now().Add(30 * time.Second)))
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Errorf("no look ends: %v", err)
			break
		}
		t.Logf("a look, in ms: %s", strings.TrimSpace(line))
		if !strings.Contains(line, pvName+":"+string(fault.DeletedVolumeSource)) {
			t.Errorf("found %s", line)
		}
	}
	stop()
	signal(t, slow.PID, "CONT")
}

// openFIFO makes a named pipe, and opens it for as long as the test runs.
func openFIFO(t *testing.T) (name string, pipe *os.File) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "answers")
	if out, err := exec.Command("mkfifo", name).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return name, pipe
}
