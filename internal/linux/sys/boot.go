// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is the time since the node has booted, sleep included: that clock cannot be set (clock_gettime(2),
// CLOCK_BOOTTIME, since Linux 2.6.39).
func SinceBoot() time.Duration { return readClock(unix.CLOCK_BOOTTIME) }

func readClock(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts) // it fails for unknown clocks alone
	return time.Duration(ts.Nano())
}

// BootID is the kernel's random name of this boot (random(4)).
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the name of the boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
