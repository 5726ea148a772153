// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// elsewhere runs fn in a copy of the mount namespace, which shares the shared mounts of the original.
func elsewhere(fn func() error) error {
	return sys.OnThread(func() error { return sys.InMountsCopy(fn) })
}

// TestKernelReportsEveryChange: every change that the list must follow raises the event, even if another namespace is
// the cause. A change in another namespace alone does not.
func TestKernelReportsEveryChange(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"target", "moved", "shared", "removed", "source"} {
		must(t, os.Mkdir(at(name), 0o700))
	}
	must(t, sys.NewMount("changes", at("shared"), "tmpfs", ""))
	t.Cleanup(func() { systest.UnmountPath(at("shared"), true) })
	must(t, sys.SetPropagation(at("shared"), sys.Shared, false))
	must(t, os.Mkdir(at("shared/below"), 0o700))

	own, err := Of(os.Getpid())
	must(t, err)
	var c mountPoll
	defer c.closeTable()
	if !c.mayHaveChanged(own) || c.table == nil || c.mayHaveChanged(own) {
		t.Fatal("the first call reports no change, there is no table, or the second reports a change")
	}
	for _, step := range []struct {
		name string
		want bool
		do   func() error
	}{
		{"nothing", false, func() error { return nil }},
		{"mount", true, func() error { return sys.NewMount("changes", at("target"), "tmpfs", "") }},
		{"bind", true, func() error { return sys.BindMount(at("source"), at("removed")) }},
		{"move", true, func() error { return systest.MoveMountTo(at("target"), at("moved")) }},
		{"unmount", true, func() error { return systest.UnmountPath(at("moved"), false) }},
		{"mount elsewhere", false, func() error {
			return elsewhere(func() error { return sys.NewMount("changes", at("target"), "tmpfs", "") })
		}},
		{"mount that comes from elsewhere", true, func() error {
			return elsewhere(func() error { return sys.NewMount("changes", at("shared/below"), "tmpfs", "") })
		}},
		{"unmount that comes from elsewhere", true, func() error {
			return elsewhere(func() error { return systest.UnmountPath(at("shared/below"), false) })
		}},
		{"mount point removed elsewhere", true, func() error {
			return elsewhere(func() error {
				if err := systest.UnmountPath(at("removed"), true); err != nil {
					return err
				}
				return os.Remove(at("removed"))
			})
		}},
		{"file made and removed", false, func() error { return os.Remove(at("source")) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := c.mayHaveChanged(own); got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
		if c.mayHaveChanged(own) {
			t.Errorf("%s: told of twice", step.name)
		}
	}
}

// TestNoOtherNamespaceIsKeptAlive: the Lister holds nothing open of a namespace that is not ours or PID 1's, and closes
// an earlier mountinfo.
func TestNoOtherNamespaceIsKeptAlive(t *testing.T) {
	var c mountPoll
	defer c.closeTable()
	own, err := Of(os.Getpid())
	must(t, err)
	other, err := Of(kerneltest.Start(t, "hold").PID)
	must(t, err)
	for _, step := range []struct {
		ns   Namespace
		held bool
	}{{own, true}, {other, false}, {own, true}} {
		first := c.mayHaveChanged(step.ns)
		if held := c.table != nil; held != step.held || !first || c.mayHaveChanged(step.ns) == held {
			t.Errorf("%v: held %v, want %v", step.ns, held, step.held)
		}
	}
}

// TestKernelReportsThroughProcessOne has a process in another mount namespace follow
// that of process 1, as an agent in a pod does.
func TestKernelReportsThroughProcessOne(t *testing.T) {
	attr := sys.PrivateMounts(sys.Clone{Processes: true})
	const want = "true true false true false"
	if got := kerneltest.StartWith(t, attr, "one", t.TempDir()).Answer; got != want {
		t.Errorf("process 1 is elsewhere, told at first, and again, at a mount, and again: %s, want %s", got, want)
	}
}

// initRole is process 1 of a PID namespace, and hands on the finds of its child in another mount namespace.
func initRole(args []string, ready func(string)) error {
	if err := errors.Join(sys.SetPropagation("/", sys.Private, true), sys.NewMount("proc", "/proc", "proc", "")); err != nil {
		return err
	}
	follower := exec.Command("/proc/self/exe", args...)
	follower.Env, follower.SysProcAttr, follower.Stderr = kerneltest.RoleEnv("follower"), sys.PrivateMounts(sys.Clone{}), os.Stderr
	out, err := follower.Output()
	answer, _ := strings.CutPrefix(strings.TrimSpace(string(out)), "ready ")
	ready(answer)
	return err
}

// followerRole follows process 1 while it mounts something there.
func followerRole(args []string, ready func(string)) error {
	one, err := Of(1)
	if err != nil {
		return err
	}
	own, err := Self()
	if err != nil {
		return err
	}
	var c mountPoll
	defer c.closeTable()
	said := []any{!own.Same(one), c.mayHaveChanged(one), c.mayHaveChanged(one)}
	if err := one.Do(func() error { return holdMounts(args) }); err != nil {
		return err
	}
	said = append(said, c.mayHaveChanged(one), c.mayHaveChanged(one))
	ready(fmt.Sprint(said...))
	return nil
}

// TestAQuietListerReadsLittle: nothing of the table while the kernel reports
// nothing, and at a mount all of it.
func TestAQuietListerReadsLittle(t *testing.T) {
	back := &countedList{}
	l := newListed(t, newTestLister(false, false))
	defer l.Close()
	l.listing, l.Lister.ns, l.below, l.started = back, l.ns, l.dir, true
	for range 10 {
		_, _, err := l.List(l.ns, l.dir)
		must(t, err)
	}
	l.bindAt(t, "one")
	_, _, err := l.List(l.ns, l.dir)
	must(t, err)
	if back.loud != 2 || back.quiet != 9 {
		t.Errorf("%d lists in full and %d quiet ones, want 2 and 9", back.loud, back.quiet)
	}
	// Another path is another list.
	if _, _, err = l.List(l.ns, l.pathOf("one")); err != nil || l.listing == listing(back) {
		t.Errorf("the list of another path goes on: %v", err)
	}
}

// countedList counts how it is asked.
type countedList struct{ loud, quiet int }

func (c *countedList) list(_ Namespace, _ string, quiet bool) ([]Mount, bool, error) {
	if quiet {
		c.quiet++
	} else {
		c.loud++
	}
	return nil, false, nil
}
