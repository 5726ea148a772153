// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package holder

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// A process whose memory is locked, as it waits for a file system that does not
// answer, has whoever reads its map wait, too.
const (
	mapLimit = 500 * time.Millisecond
	maxStuck = 4  // maps that one search gives up on; then it reads no others
	maxLeft  = 64 // threads that are left waiting for a map by all searches together
)

// left are the processes for whose map a thread of ours waits, whoever has left
// it behind.
var left = struct {
	sync.Mutex
	of map[reading]bool
}{of: map[reading]bool{}}

// reading is a process whose map is read. A number that is used again has
// another start.
type reading struct {
	pid     int
	started string
}

// stuckOn tells whether nobody is to read the map of a process: a thread waits
// for it already, or too many do for others.
func stuckOn(pid int) bool {
	left.Lock()
	defer left.Unlock()
	if len(left.of) >= maxLeft {
		return true
	}
	for r := range left.of {
		if r.pid == pid && r.started == started(pid) {
			return true
		}
	}
	return false
}

// started is when a process has; empty where that cannot be read.
func started(pid int) string {
	text, err := sys.ReadProcHead(strconv.Itoa(pid)+"/stat", nil)
	if err != nil {
		return ""
	}
	at, _ := sys.StartTime(text)
	return at
}

// mapReader reads the memory maps of processes, one after the other.
type mapReader struct {
	buf   []byte
	stuck int
	file  func(name string, buf []byte) ([]byte, error) // nil: sys.ReadProc
}

// mapText is a map that was read.
type mapText struct {
	text []byte
	err  error
}

// read gives the map of a process. ETIMEDOUT: it did not answer, or too many
// others have not. What waits then ends when that process goes on or ends.
func (r *mapReader) read(ctx context.Context, pid int) ([]byte, error) {
	if r.stuck >= maxStuck || stuckOn(pid) {
		return nil, sys.ETIMEDOUT
	}
	file := r.file
	if file == nil {
		file = sys.ReadProc
	}
	this, done := reading{pid: pid}, make(chan mapText, 1)
	go func(buf []byte) {
		text, err := file(strconv.Itoa(pid)+"/maps", buf)
		left.Lock()
		defer left.Unlock()
		done <- mapText{text, err}
		delete(left.of, this)
	}(r.buf)
	limit := time.NewTimer(mapLimit)
	defer limit.Stop()
	var err error
	select {
	case m := <-done:
		if m.err == nil {
			r.buf = m.text
		}
		return m.text, m.err
	case <-limit.C:
		r.stuck++
		err = sys.ETIMEDOUT
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.buf = nil
	at := started(pid)
	left.Lock()
	defer left.Unlock()
	if len(done) == 0 {
		this.started = at
		left.of[this] = true
	}
	return nil, err
}

// mappings looks for files on the device in the memory of a process. Its
// program has been noted already.
func (s *search) mappings(ctx context.Context, maps *mapReader, pid int, program string) error {
	text, err := maps.read(ctx, pid)
	if errors.Is(err, sys.ETIMEDOUT) || errors.Is(err, sys.ErrTooLarge) {
		s.report.Looked.Stuck++
		return nil
	}
	if err != nil {
		return err
	}
	eachMapping(text, func(number blockdev.Number, path []byte) {
		if !s.super[number] || string(path) == program {
			return
		}
		s.add(Holder{Kind: Mapping, PIDs: []int{pid}, Path: string(path)})
		s.place(number)
	})
	return nil
}

// eachMapping calls fn with every line of a map that is of a file: the number
// of its file system, and its path. It allocates nothing.
func eachMapping(text []byte, fn func(number blockdev.Number, path []byte)) {
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		// address, permissions, offset; then the device, the inode, and the path.
		for range 3 {
			_, line, _ = bytes.Cut(line, []byte{' '})
		}
		device, line, _ := bytes.Cut(line, []byte{' '})
		number, ok := hexNumber(device)
		if !ok {
			continue
		}
		_, path, _ := bytes.Cut(line, []byte{' '})
		fn(number, bytes.TrimLeft(path, " "))
	}
}

// hexNumber reads "fd:1a", as maps have it; not 00:00, which is no file.
func hexNumber(text []byte) (blockdev.Number, bool) {
	a, b, ok := bytes.Cut(text, []byte{':'})
	if !ok || string(text) == "00:00" {
		return blockdev.Number{}, false
	}
	major, okMajor := hex(a)
	minor, okMinor := hex(b)
	return blockdev.Number{Major: major, Minor: minor}, okMajor && okMinor
}

// hex reads up to eight digits.
func hex(text []byte) (n uint32, ok bool) {
	for _, c := range text {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | uint32(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | uint32(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, len(text) > 0 && len(text) <= 8
}
