// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// leaveSpaces has args[1] mount namespaces with a FUSE file system at args[0], of which a descriptor alone is left.
func leaveSpaces(args []string, ready func(string)) error {
	wanted, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var left []sys.NamespaceFD
	err = sys.OnThread(func() error {
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
		err := errors.Join(sys.UnshareMounts(), sys.SetPropagation("/", sys.Private, true), sys.NewMount("left", args[0], "fuse", options))
		for err == nil && len(left) < wanted {
			var space sys.NamespaceFD
			if space, err = sys.OpenNamespace(sys.ThreadProc("ns/mnt")); err == nil {
				left, err = append(left, space), sys.UnshareMounts()
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	runtime.KeepAlive(left)
	return device.Close()
}

// TestSpacesWithoutProcesses: any user who has /dev/fuse may leave thousands of mount namespaces in which no process is. An inspection goes over all
// namespaces of the machine a few times, and not once for each of them.
func TestSpacesWithoutProcesses(t *testing.T) {
	kerneltest.Needs(t, sys.HasNamespaceWalk)
	kerneltest.Needs(t, sys.HasNamespaceID)
	const left, most = 100, 20
	s := newScene(t, deepDir)
	kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "leave-spaces", t.TempDir(), strconv.Itoa(left))
	walks := mountns.CountWalks()
	_, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{})
	s.must(err)
	if n := walks(); n > most {
		t.Errorf("%d walks over the namespaces of the machine, want %d at the most", n, most)
	}
}
