// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/fakenode"
)

// attackers are the attacks of tenants' processes on their node. Each is root of a user namespace, and has no privilege outside of it.
var attackers = kerneltest.Roles{
	"descriptors": unasked(floodDescriptors), "unlinks": unasked(floodUnlinks), "forge": unasked(forge), "forge-server": unasked(serveForged),
}

// Niceness of processes against that of the benchmark. The kubelet gives a pod without requests a fiftieth of the weight that the agent
// has, which requests a tenth of a core: that is a niceness of 17 more. The benchmark, the API server and etcd are other machines of a
// cluster, and have to leave the node's CPUs to the agent.
const ofPrograms, ofAttackers = -3, 14

// unasked is a role in a pod that requests no CPU.
func unasked(role func([]string, func(string)) error) func([]string, func(string)) error {
	return func(args []string, ready func(string)) error {
		if err := beNicer(os.Getpid(), ofAttackers); err != nil {
			return err
		}
		return role(args, ready)
	}
}

// beNicer changes the niceness of the threads of a process. Threads and processes that start later have that of their maker.
func beNicer(pid, by int) error {
	now, err := unix.Getpriority(unix.PRIO_PROCESS, pid) // 20 less the niceness
	if err != nil {
		return err
	}
	for range 2 { // the first time, a thread that has the old one may start another
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			err := unix.Setpriority(unix.PRIO_PROCESS, id, min(19, max(-20, 20-now+by)))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

const manyDescriptors = 513_000

// keptDescriptors is how many descriptors a process of the flood does without, to start the next one.
const keptDescriptors = 64

// floodDescriptors has as many descriptors of one mount namespace as args[0] says, in as many processes as it takes. args[1], if there is one, is
// the name by which a process finds the descriptor of another. No process is in that namespace, and a FUSE file system that never answers is in it.
func floodDescriptors(args []string, ready func(string)) error {
	wanted, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	name := ""
	if len(args) > 1 {
		name = args[1]
	}
	var space int
	if name == "" {
		space, err = leftSpace()
		name = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space)
	} else {
		space, err = unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return err
	}
	made := []int{space}
	for len(made) < wanted {
		fd, full := unix.FcntlInt(uintptr(space), unix.F_DUPFD_CLOEXEC, 0)
		if full != nil { // that is how many it may have
			break
		}
		made = append(made, fd)
	}
	if len(made) < wanted {
		kept := max(1, len(made)-keptDescriptors)
		for _, fd := range made[kept:] {
			_ = unix.Close(fd)
		}
		end, err := volumetest.Play("descriptors", nil, fmt.Sprint(wanted-kept), name)
		if err != nil {
			return err
		}
		defer end()
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// leftSpace opens a mount namespace in which no process stays.
func leftSpace() (space int, err error) {
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), private()); err != nil {
		return 0, err
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	point, options := os.TempDir(), fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device)
	if err := unix.Mount("flood", point, "fuse", 0, options); err != nil {
		return 0, err
	}
	if space, err = unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return 0, err
	}
	return space, errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Unmount(point, unix.MNT_DETACH))
}

// floodUnlinks makes and removes a file in the directory args[0], as fast as it can.
func floodUnlinks(args []string, ready func(string)) error {
	name := filepath.Join(args[0], "comes-and-goes")
	failed := make(chan error, 1)
	go func() {
		for {
			fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			if err == nil {
				err = errors.Join(unix.Close(fd), unix.Unlink(name))
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	ready("")
	ended := make(chan struct{})
	go func() {
		kerneltest.WaitForEnd()
		close(ended)
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return nil
	}
}

// forgedCopies is how many copies of what it forges an attacker has beside the one at the place of the volume.
const forgedCopies = 200

// forge is root of a user namespace, with a root directory of its own at args[0]: a file system dies at args[1] that looks as
// that of the volume which its container has there, which is alive.
func forge(args []string, ready func(string)) error {
	root, at := args[0], args[1]
	own, place := filepath.Join(root, "own"), filepath.Join(root, at)
	err := errors.Join(private(), unix.Mount("root", root, "tmpfs", 0, ""), os.Mkdir(own, 0o755), os.Mkdir(place, 0o755))
	if err != nil {
		return err
	}
	end, err := startForged(own)
	if err != nil {
		return err
	}
	defer end()
	from := filepath.Join(own, fakenode.ShareDir)
	err = unix.Mount(from, place, "", unix.MS_BIND, "")
	for i := 0; i < forgedCopies && err == nil; i++ {
		more := filepath.Join(root, "more", strconv.Itoa(i))
		if err = os.MkdirAll(more, 0o755); err == nil {
			err = unix.Mount(from, more, "", unix.MS_BIND, "")
		}
	}
	if err != nil {
		return err
	}
	end()
	if err := errors.Join(unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")); err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// startForged has another process serve the forged mount, until end.
func startForged(point string) (end func(), err error) {
	return volumetest.Play("forge-server", nil, point)
}

// serveForged serves a file system of the type, the source and the directory of those of the shares at args[0].
func serveForged(args []string, ready func(string)) error {
	root := &fs.Inode{}
	_, err := fs.Mount(args[0], root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: fakenode.ShareName, Name: fakenode.ShareName},
		OnAdd: func(ctx context.Context) {
			root.AddChild(fakenode.ShareDir, root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: fuse.S_IFDIR}), false)
		},
	})
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

func private() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }
