// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"runtime"
	"sync"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// The kernel takes a microsecond to name the file system of a mount. Several
// threads ask for many mounts.
const (
	mountsPerReader = 4096
	maxReaders      = 4
)

// readSupers brings the list up to date, and asks for the file system of every
// mount that is new.
func (k *kernelScan) readSupers() (Survey, error) {
	survey, err := k.list()
	if err != nil {
		return survey, err
	}
	var (
		todo  []*space
		count int
	)
	for _, s := range k.order {
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
				errs[i] = todo[at].readSupers(&stat, &k.kinds)
			}
		})
	}
	done.Wait()
	return survey, errors.Join(errs...)
}

// unread counts the mounts whose file system has not been asked for.
func (s *space) unread() int {
	n := 0
	for _, super := range s.supers {
		if super&superRead == 0 {
			n++
		}
	}
	return n
}

// readSupers asks for the file system of every mount once. Mounts that are gone by
// now are passed over.
func (s *space) readSupers(stat *sys.MountStat, kinds *kinds) error {
	for i := range s.supers {
		if s.supers[i]&superRead != 0 {
			continue
		}
		ref := sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]}
		err := stat.Load(ref, sys.StatmountSuper)
		if err == nil {
			major, minor := stat.Device()
			var mayHang bool
			if mayHang, err = kinds.mayHang(stat, ref); err == nil {
				s.supers[i] = newSuper(major, minor, mayHang)
			}
		}
		if err != nil && !procfs.Ended(err) {
			return err
		}
	}
	return nil
}

// kinds are the magic numbers of file systems that were met, and whether those may
// hang. A number comes with the rest at no price; the name of the type takes
// another call, which is made once for each number.
type kinds struct {
	mu    sync.Mutex
	known map[uint64]bool
}

// mayHang reports whether the file system of the mount that stat has read may hang.
func (k *kinds) mayHang(stat *sys.MountStat, ref sys.MountRef) (bool, error) {
	magic := stat.Magic()
	k.mu.Lock()
	defer k.mu.Unlock()
	if hangs, known := k.known[magic]; known {
		return hangs, nil
	}
	if err := stat.Load(ref, sys.StatmountType); err != nil {
		return false, err
	}
	hangs := MayHang(stat.FSType())
	if k.known == nil {
		k.known = map[uint64]bool{}
	}
	if magic != 0 { // which is no type's own
		k.known[magic] = hangs
	}
	return hangs, nil
}
