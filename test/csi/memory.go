// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// spare is what the driver's container may still take when its memory is limited, megabytes how much is then given to
	// the daemon to keep. A ceph-fuse keeps up to 100 of what is written before it sends any of it off.
	spare     = 4 << 20
	megabytes = 64
)

// ExhaustDaemon limits the memory of the driver's container to little more than it has, and writes to the volume until the
// kernel kills the daemon, which has most of it. The limit is lifted then. The driver does nothing about that.
func (d *Driver) ExhaustDaemon(t testing.TB, volume string) {
	t.Helper()
	v := d.Staged(t, volume)
	lift := limit(t, v.PID)
	defer lift()
	name := filepath.Join(v.Path, "exhausting")
	err := os.WriteFile(name, make([]byte, megabytes<<20), 0o600)
	d.env.Wait(t, fmt.Sprintf("the kernel to kill the daemon: after writing, %v", err), func(context.Context) bool {
		return errors.Is(unix.Kill(v.PID, 0), unix.ESRCH)
	})
}

// limit limits the memory of a process's control group to what it has now and a little more, and has a lack of it cost
// one process and not all.
func limit(t testing.TB, pid int) (lift func()) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must(t, err)
	var dir, used, most, none string
	for line := range strings.Lines(strings.TrimSpace(string(text))) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case fields[1] == "memory":
			dir, used, most, none = filepath.Join("/sys/fs/cgroup/memory", fields[2]), "memory.usage_in_bytes", "memory.limit_in_bytes", "-1"
		case fields[0] == "0" && dir == "":
			dir, used, most, none = filepath.Join("/sys/fs/cgroup", fields[2]), "memory.current", "memory.max", "max"
		}
	}
	if none == "max" {
		must(t, os.WriteFile(filepath.Join(dir, "memory.oom.group"), []byte("0"), 0o600))
	}
	text, err = os.ReadFile(filepath.Join(dir, used))
	must(t, err)
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	most = filepath.Join(dir, most)
	must(t, os.WriteFile(most, []byte(strconv.Itoa(now+spare)), 0o600))
	return func() { must(t, os.WriteFile(most, []byte(none), 0o600)) }
}
