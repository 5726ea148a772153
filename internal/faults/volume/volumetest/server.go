// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// serve is a role: the daemon of a file system that is kept in memory, at args[0], with a file "data" that says args[2] in
// directory args[1]. The kernel is told to remember nothing.
func serve(args []string, ready func(string)) error {
	root, zero, forged := &fs.Inode{}, time.Duration(0), os.Getenv(NameEnv)
	_, err := fs.Mount(args[0], root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: forged == "", FsName: "mem", Name: cmp.Or(forged, Name)},
		OnAdd: func(ctx context.Context) {
			at := root
			for name := range strings.SplitSeq(args[1], "/") {
				next := at.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: fuse.S_IFDIR})
				at.AddChild(name, next, false)
				at = next
			}
			at.AddChild("data", at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(args[2])}, fs.StableAttr{}), false)
		},
	})
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil // the kernel aborts what still waits
}
