// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// descriptorsRole leaves a namespace, or opens the one that args[1] leads to, and has
// as many descriptors of it as args[0] says, or as the process may have.
func descriptorsRole(args []string, ready func(string)) error {
	wanted, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var ns *sys.FD
	if len(args) > 1 {
		ns, err = sys.OpenProc(args[1])
	} else {
		err = sys.OnThread(func() (err error) {
			if err = sys.UnshareMounts(); err == nil {
				ns, err = sys.OpenProc(sys.ThreadProc("ns/mnt"))
			}
			return err
		})
	}
	if err != nil {
		return err
	}
	made := 1
	for made < wanted {
		if _, err := ns.Dup(); err != nil {
			break // as many as it may have
		}
		made++
	}
	inode, err := sys.ReadlinkProc("self/fd/" + ns.String())
	if err != nil {
		return err
	}
	ready(fmt.Sprintf("%d %d/fd/%s %s", made, os.Getpid(), ns, inode))
	kerneltest.WaitForEnd()
	return nil
}

// manyDescriptors has half a million descriptors of one namespace open, in as many
// processes as that takes. No process is in that namespace.
func manyDescriptors(t *testing.T) Namespace {
	t.Helper()
	args := []string{"513000"}
	for left := 513_000; ; {
		made, way, inode := 0, "", ""
		if _, err := fmt.Sscan(kerneltest.Start(t, "descriptors", args...).Answer, &made, &way, &inode); err != nil {
			t.Fatal(err)
		}
		if left -= made; left <= 0 {
			return Namespace{Inode: parseInode(t, inode)}
		}
		args = []string{strconv.Itoa(left), way}
	}
}

// TestHoldersOfManyDescriptors has half a million descriptors of one namespace, and
// another process be the only one with a descriptor of its own: holders of both are
// found, with next to no memory, and the rest is not read.
func TestHoldersOfManyDescriptors(t *testing.T) {
	many := manyDescriptors(t)
	one := Namespace{Inode: parseInode(t, kerneltest.Start(t, "descriptor").Answer)}
	nobodys := Namespace{Inode: 1} // and so a holder of it may be among the descriptors that are not read
	var (
		found  map[uint64][]Holder
		survey Survey
		err    error
	)
	began := time.Now()
	most := kerneltest.Within(t, func() { found, survey, err = Holders([]Namespace{many, one, nobodys}) })
	must(t, err)
	t.Logf("%d and %d holders, %v, %d MiB: %q", len(found[many.Inode]), len(found[one.Inode]), time.Since(began), most>>20, survey.Skipped)
	if n := len(found[many.Inode]); n < 1 || n > maxOthers {
		t.Errorf("%d holders, want %d at the most", n, maxOthers)
	}
	if len(found[one.Inode]) != 1 || found[one.Inode][0].Kind != Descriptor {
		t.Errorf("holders %+v, want one", found[one.Inode])
	}
	if !strings.Contains(fmt.Sprint(survey.Skipped), "that have very many open") {
		t.Errorf("skipped %q, want that it says which were not read", survey.Skipped)
	}
}

// TestManyProcesses has one namespace have ten thousand processes: a few of them are
// told of.
func TestManyProcesses(t *testing.T) {
	const processes = 10_000
	began := time.Now()
	ns := kerneltest.Start(t, "crowd", strconv.Itoa(processes))
	t.Logf("%d processes after %v", processes, time.Since(began))
	inode, ok := inodeOf(ns.Answer)
	var (
		found map[uint64][]Holder
		err   error
	)
	began = time.Now()
	most := kerneltest.Within(t, func() { found, _, err = Holders([]Namespace{{Inode: inode}}) })
	must(t, err)
	t.Logf("%d holders, %v, %d MiB", len(found[inode]), time.Since(began), most>>20)
	if !ok || len(found[inode]) != maxTasks {
		t.Errorf("%d holders of %q, want %d", len(found[inode]), ns.Answer, maxTasks)
	}
}

// crowdRole has that many processes beside it, which do nothing and end with it. A
// shell is slow with more than a few thousand.
func crowdRole(args []string, ready func(string)) error {
	left, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for ; left > 0; left -= 2000 {
		script := fmt.Sprintf("exec 3<&0; i=0; while [ $i -lt %d ]; do (read x <&3) & i=$((i+1)); done; echo; wait", min(left, 2000))
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdin = os.Stdin
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() { _ = cmd.Wait() }()
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	return stayRole(ready)
}
