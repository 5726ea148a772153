// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"runtime"
	"sync"

	"kubediag.org/kubediag/internal/linux/sys"
)

// A mount's device takes the kernel a microsecond to tell. Where there are many
// to ask for, several threads do it.
const (
	mountsPerReader = 4096
	maxReaders      = 4
)

// readDevices brings the list up to date, and asks for the device of every
// mount that is new.
func (k *kernelScan) readDevices() (Survey, error) {
	survey, err := k.list()
	if err != nil {
		return survey, err
	}
	var (
		todo  []*space
		count int
	)
	for _, s := range k.spaces {
		if n := s.unread(); n > 0 {
			todo = append(todo, s)
			count += n
		}
	}
	readers := min(1+count/mountsPerReader, runtime.GOMAXPROCS(0), maxReaders)
	errs := make([]error, readers)
	var done sync.WaitGroup
	for i := range readers {
		done.Go(func() {
			var stat sys.MountStat
			for at := i; at < len(todo) && errs[i] == nil; at += readers {
				errs[i] = todo[at].readDevices(&stat)
			}
		})
	}
	done.Wait()
	return survey, errors.Join(errs...)
}

// unread counts the mounts whose device has not been asked for.
func (s *space) unread() int {
	n := 0
	for i := range s.mounts {
		if !s.mounts[i].onDisk {
			n++
		}
	}
	return n
}

// readDevices asks for the device of every mount once. Mounts that are gone by
// now are passed over.
func (s *space) readDevices(stat *sys.MountStat) error {
	for i := range s.mounts {
		m := &s.mounts[i]
		if m.onDisk {
			continue
		}
		err := stat.Load(sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]}, sys.StatmountSuper)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		m.device, m.onDisk = deviceNumber(stat.Device()), true
	}
	return nil
}
