// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// FUSE mounts a file system at dir, in the test's namespace, and returns the process that serves it. In it, "dir" is a
// directory, and "zeros" a file; "moving" is another directory at every lookup, as after a server that lost its state; a lookup of "hang"
// never ends. Neither does a write to the file "stuck", nor to close it. A lookup of "mute" fails, and no later request
// ends. The mount goes with the test, not with the process.
func FUSE(t testing.TB, dir string) *Actor {
	t.Helper()
	a := StartWith(t, nil, fuseRole, dir)
	t.Cleanup(func() {
		a.End() // the kernel aborts the requests that still hang
		systest.UnmountPath(dir, true)
	})
	return a
}

const fuseRole = "fuse"

// Requests and structures of include/uapi/linux/fuse.h.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseStatfs      = 17
	fuseFlush       = 25
	fuseInit        = 26
	fuseOpendir     = 27
	fuseReaddir     = 28
	fuseReleasedir  = 29
	fuseInterrupt   = 36
	fuseBatchForget = 42
	fuseNoSys       = -38
	fuseNoEnt       = -2
)

type fuseInHeader struct {
	Len, Opcode   uint32
	Unique, Node  uint64
	UID, GID, PID uint32
	Extensions    uint32
}

type fuseAttr struct {
	Ino, Size, Blocks, Atime, Mtime, Ctime uint64
	AtimeNsec, MtimeNsec, CtimeNsec        uint32
	Mode, Nlink, UID, GID, Rdev, Blksize   uint32
	Flags                                  uint32
}

// serveFUSE plays the role.
func serveFUSE(args []string, ready func(string)) error {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	// A second File on the descriptor, which Fd has made blocking: the runtime
	// takes a device that serves no mount yet for one that cannot be polled.
	blocking := os.NewFile(dev.Fd(), "fuse")
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev.Fd())
	if err := sys.NewMount("kerneltest", args[0], "fuse", data); err != nil {
		return err
	}
	go func() {
		WaitForEnd()
		os.Exit(0)
	}()
	server := fuseServer{dev: blocking, next: 100}
	ready("")
	for {
		if err := server.answer(); err != nil {
			return err
		}
	}
}

type fuseServer struct {
	dev  io.ReadWriter
	next uint64 // node ID of the next "moving"
	mute bool   // a lookup of "mute" has come
}

// answer reads one request and answers it, or leaves it hanging.
func (s *fuseServer) answer() error {
	buf := make([]byte, 128<<10)
	n, err := s.dev.Read(buf)
	if err != nil {
		return err
	}
	var in fuseInHeader
	header := bytes.NewReader(buf[:n])
	if err := binary.Read(header, binary.NativeEndian, &in); err != nil {
		return err
	}
	body := buf[binary.Size(in):n]
	if s.mute {
		return nil
	}
	switch in.Opcode {
	case fuseForget, fuseBatchForget, fuseInterrupt, fuseWrite:
		return nil
	case fuseFlush:
		if in.Node == stuckNode {
			return nil
		}
	case fuseInit:
		return s.reply(in, 0, [16]uint32{7, 31, 0, 0, 0, 64 << 10})
	case fuseGetattr:
		return s.reply(in, 0, uint64(0), uint64(0), attrOf(in.Node))
	case fuseLookup:
		name, _, _ := bytes.Cut(body, []byte{0})
		return s.lookup(in, string(name))
	case fuseRead:
		return s.reply(in, 0, make([]byte, min(binary.NativeEndian.Uint32(body[16:]), fileSize)))
	case fuseOpen, fuseOpendir:
		return s.reply(in, 0, [2]uint64{})
	case fuseStatfs:
		return s.reply(in, 0, [10]uint64{})
	case fuseReaddir, fuseReleasedir:
		return s.reply(in, 0)
	}
	return s.reply(in, fuseNoSys)
}

func (s *fuseServer) lookup(in fuseInHeader, name string) error {
	node := uint64(2)
	switch name {
	case "mute":
		s.mute = true
		return s.reply(in, fuseNoEnt)
	case "dir":
	case "moving":
		s.next++
		node = s.next
	case "stuck":
		node = stuckNode
	case "zeros":
		node = zerosNode
	case "hang":
		return nil
	default:
		return s.reply(in, fuseNoEnt)
	}
	// Nothing is to be remembered: the kernel asks again at every step.
	return s.reply(in, 0, [5]uint64{node}, attrOf(node))
}

// The files "stuck" and "zeros".
const (
	stuckNode = 3
	zerosNode = 4
	fileSize  = 4096
)

func attrOf(node uint64) fuseAttr {
	if node == stuckNode || node == zerosNode {
		return fuseAttr{Ino: node, Size: fileSize, Mode: 0o100644, Nlink: 1}
	}
	return fuseAttr{Ino: node, Mode: 0o40755, Nlink: 2}
}

func (s *fuseServer) reply(in fuseInHeader, errno int32, parts ...any) error {
	var body bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&body, binary.NativeEndian, part); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	for _, part := range []any{uint32(16 + body.Len()), errno, in.Unique} {
		if err := binary.Write(&out, binary.NativeEndian, part); err != nil {
			return err
		}
	}
	out.Write(body.Bytes())
	_, err := s.dev.Write(out.Bytes())
	return err
}
