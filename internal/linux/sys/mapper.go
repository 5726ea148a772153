// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The device mapper's own node, which has the same number on each machine, and its ioctl of include/uapi/linux/dm-ioctl.h that describes
// the parts of a device.
const (
	mapperMajor, mapperMinor = 10, 236
	mapperTableStatus        = 0xc138fd0c
	// mapperNoFlush has no target write anything before it answers.
	mapperNoFlush    = 1 << 11
	mapperBufferFull = 1 << 8
)

// mapperRequest is the kernel's struct dm_ioctl. The answer follows it, at an offset of dataStart.
type mapperRequest struct {
	version                                                          [3]uint32
	dataSize, dataStart, targets, opened, flags, eventNumber, unused uint32
	device                                                           uint64
	name                                                             [128]byte
	uuid                                                             [129]byte
	data                                                             [7]byte
}

// The kernel's struct dm_target_spec, which a text follows: two numbers of eight bytes, a status, the offset of the next structure from the
// first, and the type of the target.
const (
	targetNextAt = 20 // four bytes
	targetKindAt = 24 // sixteen bytes
	targetBytes  = 40
)

// MapperTarget is one part of a mapped device, and the device mapper's words about its state.
type MapperTarget struct {
	Type, Status string
}

// mapperAnswerBytes bounds the answer about a device: some lines for each path of a multipath device.
const mapperAnswerBytes = 64 << 10

var errMapperAnswer = errors.New("answer of the device mapper is cut off")

// MapperTargets describes the parts of a mapped device, without a request to the devices below it. The call may wait for other calls about it.
// ENXIO: it is no mapped device. EPERM: this process may not make nodes, or not ask.
func MapperTargets(major, minor uint32) ([]MapperTarget, error) {
	fd, err := openNumber(unix.S_IFCHR, mapperMajor, mapperMinor, func(dir *FD, name string) (*FD, error) {
		return openat(dir.number, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	})
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	buffer := make([]uint64, mapperAnswerBytes/8) // aligned as the structures are
	r := (*mapperRequest)(unsafe.Pointer(&buffer[0]))
	*r = mapperRequest{
		version: [3]uint32{4}, dataSize: mapperAnswerBytes, dataStart: uint32(unsafe.Sizeof(*r)), flags: mapperNoFlush,
		device: uint64(minor&0xff | major<<8 | (minor&^0xff)<<12),
	}
	err = retryInterruptedError(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd.number), mapperTableStatus, uintptr(unsafe.Pointer(r)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	end := min(r.dataSize, mapperAnswerBytes)
	if r.flags&mapperBufferFull != 0 || r.dataStart > end {
		return nil, errMapperAnswer
	}
	answer := unsafe.Slice((*byte)(unsafe.Pointer(&buffer[0])), mapperAnswerBytes)[r.dataStart:end]
	targets, err := parseTargets(answer, int(r.targets))
	runtime.KeepAlive(buffer)
	return targets, err
}

// parseTargets reads so many descriptions, each a structure and a text that ends with a zero.
func parseTargets(answer []byte, count int) (targets []MapperTarget, err error) {
	at := 0
	for range count {
		if at < 0 || len(answer)-at < targetBytes {
			return nil, errMapperAnswer
		}
		spec := answer[at : at+targetBytes]
		kind, _, _ := bytes.Cut(spec[targetKindAt:], []byte{0})
		text, _, ok := bytes.Cut(answer[at+targetBytes:], []byte{0})
		if !ok {
			return nil, errMapperAnswer
		}
		targets = append(targets, MapperTarget{Type: string(kind), Status: string(text)})
		next := int(binary.NativeEndian.Uint32(spec[targetNextAt:]))
		if next <= at {
			at = -1
			continue
		}
		at = next
	}
	return targets, nil
}
