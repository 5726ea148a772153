// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// loops counts the devices of this process.
var loops atomic.Int64

// Attach makes a loop device of an image and returns its node. The caller detaches it; it is removed afterwards, as the
// test ends.
//
// Its number is one of this run alone, far above those that the kernel names free: programs that look for a free device
// open that one, and hold it for a moment though another program was faster.
func Attach(t *testing.T, image string) (node string) {
	t.Helper()
	const first, runs, each = 1 << 16, 4000, 1 << 7 // the kernel has 1<<20 minor numbers
	number := first + kerneltest.Run()%runs*each + int(loops.Add(1))%each
	node = fmt.Sprintf("/dev/loop%d", number)
	t.Cleanup(func() { _ = untilDone(func() error { return systest.RemoveLoop(number) }) }) // the caller, who detaches the device, reports a holder
	run(t, "losetup", node, image)                                                          // which adds a device that is not there
	return node
}
