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

// readSuperBlocks brings the list up to date, and asks for the file system of every
// mount that is new.
func (k *kernelScan) readSuperBlocks() (Survey, error) {
	survey, err := k.listNamespaces()
	if err != nil {
		return survey, err
	}
	var (
		todo  []*scannedNamespace
		count int
	)
	for _, s := range k.inPassOrder {
		if n := s.countUnread(); n > 0 {
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
				errs[i] = todo[at].readSuperBlocks(&stat, &k.magicNumbers)
			}
		})
	}
	done.Wait()
	return survey, errors.Join(errs...)
}

// countUnread counts the mounts whose file system has not been asked for.
func (s *scannedNamespace) countUnread() int {
	n := 0
	for _, super := range s.superBlocks {
		if super&superBlockRead == 0 {
			n++
		}
	}
	return n
}

// readSuperBlocks asks for the file system of every mount once. Mounts that are gone by
// now are passed over.
func (s *scannedNamespace) readSuperBlocks(stat *sys.MountStat, kinds *magicCache) error {
	for i := range s.superBlocks {
		if s.superBlocks[i]&superBlockRead != 0 {
			continue
		}
		ref := sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]}
		err := stat.Load(ref, sys.StatmountSuper)
		if err == nil {
			major, minor := stat.Device()
			var mayHang bool
			if mayHang, err = kinds.mountMayHang(stat, ref); err == nil {
				s.superBlocks[i] = newSuperBlock(major, minor, mayHang)
			}
		}
		if err != nil && !procfs.Ended(err) {
			return err
		}
	}
	return nil
}

// magicCache are the magic numbers of file systems that were met, and whether those may
// hang. A number comes with the rest at no price; the name of the type takes
// another call, which is made once for each number.
type magicCache struct {
	mu             sync.Mutex
	mayHangByMagic map[uint64]bool
}

// mountMayHang reports whether the file system of the mount that stat has read may hang.
func (k *magicCache) mountMayHang(stat *sys.MountStat, ref sys.MountRef) (bool, error) {
	magic := stat.Magic()
	k.mu.Lock()
	defer k.mu.Unlock()
	if hangs, known := k.mayHangByMagic[magic]; known {
		return hangs, nil
	}
	if err := stat.Load(ref, sys.StatmountType); err != nil {
		return false, err
	}
	hangs := MayHang(stat.FSType())
	if k.mayHangByMagic == nil {
		k.mayHangByMagic = map[uint64]bool{}
	}
	if magic != 0 { // which is no type's own
		k.mayHangByMagic[magic] = hangs
	}
	return hangs, nil
}
