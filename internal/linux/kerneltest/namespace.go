// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

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

// BindNamespace starts a process with a mount namespace of its own, binds that
// namespace to a file for as long as the test runs, and has the process end.
//
// The kernel lets a namespace be bound only in one with a smaller number, and
// every processor has a batch of numbers of its own to hand out: the namespaces
// of one may all be too small for some time, so that each has its turn.
func BindNamespace(t testing.TB, file string, start func() *Actor) *Actor {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all := processors(t)
	defer stayOn(strings.Join(all, ","))
	for deadline, try := time.Now().Add(30*time.Second), 0; ; try++ {
		stayOn(all[try%len(all)])
		a := start()
		err := sys.BindMount(fmt.Sprintf("/proc/%d/ns/mnt", a.PID), file)
		a.End()
		if err == nil {
			t.Cleanup(func() { _ = systest.UnmountPath(file, true) })
			return a
		}
		if !errors.Is(err, sys.EINVAL) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// processors lists those that this thread may run on.
func processors(t testing.TB) (all []string) {
	t.Helper()
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(status), "\nCpus_allowed_list:\t")
	list, _, _ = strings.Cut(list, "\n")
	for part := range strings.SplitSeq(list, ",") {
		first, last, several := strings.Cut(part, "-")
		if !several {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		for n := from; n <= to; n++ {
			all = append(all, strconv.Itoa(n))
		}
	}
	return all
}

// stayOn keeps this thread, and its children, on these processors alone. Without a program for that, they run on any; a
// test that tries often reaches the others, too.
func stayOn(processors string) {
	args := []string{"taskset", "-c", "-p", processors, strconv.Itoa(sys.ThreadID())}
	if p, err := os.StartProcess("/usr/bin/taskset", args, &os.ProcAttr{}); err == nil {
		_, _ = p.Wait() // it fails as if it was not there
	}
}
