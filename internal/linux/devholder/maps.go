// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// findMappings looks for files on the device in the memory of a process. Its program
// has been noted already. If the memory of a process is locked, as it waits for a
// file system that does not answer, every reader of its map waits, too.
func (j *job) findMappings(ctx context.Context, task taskInfo, program string) error {
	buf := j.buf
	j.buf = nil // it belongs to the call, which may be left behind
	text, err := callWithin(ctx, j, strconv.Itoa(task.pid), taskTimeout, func() ([]byte, error) { return sys.ReadProc(task.dir+"/maps", buf) })
	if errors.Is(err, sys.ErrTooLarge) {
		return errUnanswered
	}
	if err != nil {
		return err
	}
	j.buf = text
	var known [][]byte // a file has many mappings
	eachMapping(text, func(number blockdev.Number, at, path []byte) {
		same := func(other []byte) bool { return bytes.Equal(path, other) }
		if !slices.Contains(j.Marks.Superblocks, number) || string(path) == program || slices.ContainsFunc(known, same) {
			return
		}
		known = append(known, path)
		f, name := foundFile{Kind: Mapping, PID: task.pid, Path: path, Number: number}, task.dir+"/map_files/"+string(at)
		f.Mount, _ = callWithin(ctx, j, strconv.Itoa(task.pid), taskTimeout, func() (uint64, error) {
			st, err := sys.StatProcPath(name, sys.StatType|j.Marks.mountMask())
			return st.MountID, err
		}) // 0: the mapping is gone, or we may not look
		err = errors.Join(err, j.emit(jobOutput{Found: &f}))
	})
	return err
}

// eachMapping calls fn with every line of a map that is of a file: the number
// of its file system, its addresses, and its path. It allocates nothing.
func eachMapping(text []byte, fn func(number blockdev.Number, at, path []byte)) {
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		// address, permissions, offset; then the device as "fd:1a", the inode, and the path.
		at, line, _ := bytes.Cut(line, []byte{' '})
		for range 2 {
			_, line, _ = bytes.Cut(line, []byte{' '})
		}
		device, line, _ := bytes.Cut(line, []byte{' '})
		a, b, ok := bytes.Cut(device, []byte{':'})
		major, errMajor := strconv.ParseUint(string(a), 16, 32)
		minor, errMinor := strconv.ParseUint(string(b), 16, 32)
		number := blockdev.Number{Major: uint32(major), Minor: uint32(minor)}
		if !ok || errMajor != nil || errMinor != nil || number == (blockdev.Number{}) { // 00:00 is no file
			continue
		}
		_, path, _ := bytes.Cut(line, []byte{' '})
		fn(number, at, bytes.TrimLeft(path, " "))
	}
}
