// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// findMappings looks for files on the device in the memory of a process. Its program
// has been noted already. If the memory of a process is locked, as it waits for a
// file system that does not answer, every reader of its map waits, too.
func (j *job) findMappings(task taskInfo, program string) error {
	task.step()
	name := task.dir + "/maps"
	mapped, err := sys.MapsFile(name, func(major, minor uint32) bool {
		return slices.Contains(j.Marks.Superblocks, blockdev.Number{Major: major, Minor: minor})
	})
	if errors.Is(err, sys.ENOTTY) { // an older kernel: only the text says it
		mapped, err = true, nil
	}
	if err != nil || !mapped {
		return err
	}
	room, _ := j.mapTexts.Get().(*[]byte)
	if room == nil {
		room = new([]byte)
	}
	text, err := sys.ReadProc(name, *room)
	if errors.Is(err, sys.ErrTooLarge) {
		return errUnanswered
	}
	if err != nil {
		return err
	}
	*room = text
	defer j.mapTexts.Put(room)
	var known [][]byte // a file has many mappings
	eachMapping(text, func(number blockdev.Number, at, path []byte) {
		same := func(other []byte) bool { return bytes.Equal(path, other) }
		on := slices.Contains(j.Marks.Superblocks, number)
		if !on && !j.Marks.Overlay || string(path) == program || slices.ContainsFunc(known, same) {
			return
		}
		task.step()
		known = append(known, path)
		f := foundFile{Kind: Mapping, PID: task.pid, Path: path, Number: number}
		// It fails if the mapping is gone, or if we may not look.
		st, failed := sys.StatProcPath(task.dir+"/map_files/"+string(at), sys.StatType|j.Marks.mountMask())
		if failed == nil {
			f.Mount = st.MountID
		}
		if !on { // older kernels name the file system of the overlay's layer, and the path in the overlay
			if f.Number, on = j.Marks.fileSystemOf(st); !on || failed != nil {
				return
			}
		}
		err = errors.Join(err, j.write(jobOutput{Found: &f}))
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
