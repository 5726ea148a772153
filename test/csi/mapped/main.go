// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command mapped mounts a directory as a file system on FUSE, until it is killed. Mounts of it may map the owners of files, as pods with a user
// namespace of their own need it. The daemons of Debian do not allow that. It is for tests alone.
//
//	mapped DIRECTORY MOUNTPOINT
package main

import (
	"log"
	"os"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: mapped DIRECTORY MOUNTPOINT")
	}
	root, err := fs.NewLoopbackRoot(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server, err := fs.Mount(os.Args[2], root, &fs.Options{MountOptions: fuse.MountOptions{
		Name: "mapped", FsName: os.Args[1], AllowOther: true, DirectMount: true, IDMappedMount: true,
	}})
	if err != nil {
		log.Fatal(err)
	}
	server.Wait()
}
