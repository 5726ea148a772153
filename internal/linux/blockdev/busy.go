// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Busy reports whether the kernel refuses the device to all others. Then it, a
// partition of it, or the disk that it is a partition of is mounted, swapped to, or
// used by another driver. It asks by claiming the device for a moment (O_EXCL), in
// which no other process can claim it. A process that has the device's node open
// does not count, though loop, zram and krbd count it when they are detached. If
// this process may not open the device, it is busy if FileSystems or Users finds
// anything. If they find nothing, it need not be free: then EPERM or EACCES comes
// back.
func (s Sys) Busy(d Device) (bool, error) {
	busy, err := callWithin(&deviceCalls, d.callKey(), func() (bool, error) {
		// The device is claimed once, and again only if no known holder explains the refusal.
		fd, err := s.openDevice(d, true)
		fd.Close()
		if errors.Is(err, sys.EBUSY) {
			if s.hasKnownUser(d) {
				return true, nil
			}
			err = s.checkFree(d)
		}
		if errors.Is(err, ErrBusy) {
			return true, nil
		}
		return false, err
	})
	if errors.Is(err, fs.ErrPermission) && s.hasKnownUser(d) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim device %q: %w", d.Name, err)
	}
	return busy, nil
}

// hasKnownUser reports whether sysfs and proc know of anything that keeps it busy.
func (s Sys) hasKnownUser(d Device) bool {
	found, _ := s.FileSystems(d)
	users, _ := s.Users(d)
	return len(found) > 0 || slices.ContainsFunc(users, func(u User) bool { return u.Kind != SwapFile })
}

// callKey distinguishes the calls about this device from those about others.
func (d Device) callKey() string { return d.Number.String() }

// Another process may be claiming the device at this moment, such as another kubediag, and look like a holder. So a busy device is tried
// again.
const (
	maxBusyTries = 10
	busyPause    = 10 * time.Millisecond
)

// retryWhileBusy repeats ask while the kernel reports that the device is busy.
func retryWhileBusy(ask func() error) error {
	for tries := 1; ; tries++ {
		err := ask()
		if tries == maxBusyTries || !errors.Is(err, sys.EBUSY) {
			return err
		}
		time.Sleep(busyPause)
	}
}

// openClaimed opens the device so that nothing else can claim it. ErrBusy: something has claimed it.
func (s Sys) openClaimed(d Device) (*sys.FD, error) {
	var fd *sys.FD
	err := retryWhileBusy(func() (err error) {
		fd, err = s.openDevice(d, true)
		return err
	})
	if errors.Is(err, sys.EBUSY) {
		err = fmt.Errorf("%w: claimed by a file system, swap or driver: %w", ErrBusy, err)
	}
	return fd, err
}

// openDevice opens the device by its number, or by its node where this process may
// not do that.
func (s Sys) openDevice(d Device, exclusive bool) (*sys.FD, error) {
	fd, err := sys.OpenBlock(d.Major, d.Minor, exclusive)
	if errors.Is(err, sys.ENOSYS) || errors.Is(err, fs.ErrPermission) {
		fd, err = s.openNode(d, exclusive)
	}
	if err != nil {
		return nil, notFoundError(err)
	}
	return fd, nil
}

// openNode opens the device by its node, and checks that the node belongs to the device.
func (s Sys) openNode(device Device, exclusive bool) (*sys.FD, error) {
	open := sys.OpenShared
	if exclusive {
		open = sys.OpenExclusive
	}
	fd, err := open(s.newSysfs().pathAt(device.Node()))
	if err != nil {
		return nil, err
	}
	st, err := fd.Stat(sys.StatType)
	if err == nil && (Number{st.RdevMajor, st.RdevMinor}) != device.Number {
		err = fmt.Errorf("node %q stands for another device: %w", device.Node(), ErrNotFound)
	}
	if err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// Activity holds the kernel's counters of a device since it was made. If two samples are equal with no request in
// flight, the device was idle between them.
type Activity struct {
	Reads, Writes, Discards, Flushes uint64 // requests completed
	InFlight                         uint64 // requests under way
}

// Stat reads the device's counters. ErrNotCounted: the counting is switched off, so
// that equal samples would say nothing.
func (s Sys) Stat(d Device) (Activity, error) {
	disk := d.Name
	if d.Parent != "" {
		disk = d.Parent
	}
	var a Activity
	text, err := s.newSysfs().readAttribute(d.Name, "stat")
	switch {
	case err != nil:
		err = notFoundError(err)
	case s.newSysfs().readNumber(disk, "queue/iostats") != 1:
		err = ErrNotCounted
	default:
		if a, err = parseCounters(text); err != nil {
			err = fmt.Errorf("parse %q: %w", text, err)
		}
	}
	if err != nil {
		return Activity{}, fmt.Errorf("read counters of device %q: %w", d.Name, err)
	}
	return a, nil
}

// parseCounters reads 11 numbers, 15 since 4.18 (discards), or 17 since 5.5
// (flushes).
func parseCounters(text string) (Activity, error) {
	fields := strings.Fields(text)
	if len(fields) < 11 {
		return Activity{}, fmt.Errorf("%d numbers, want 11 at least", len(fields))
	}
	var activity Activity
	for i, to := range map[int]*uint64{0: &activity.Reads, 4: &activity.Writes, 8: &activity.InFlight,
		11: &activity.Discards, 15: &activity.Flushes} {
		if i >= len(fields) {
			continue
		}
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return Activity{}, err
		}
		*to = n
	}
	return activity, nil
}
