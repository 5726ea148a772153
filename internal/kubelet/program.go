// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// programMarker is a text that distinguishes kubelets, by its index.
type programMarker int

const (
	replacesMarker    programMarker = iota // an error if the present bind cannot be compared with the file of the subPath
	bindsMarker                            // every kubelet that binds subPaths says when it keeps one
	corruptedMarker                        // a bind that answers with an error is unmounted (kubernetes#138856)
	lazyMarker                             // a bind of another file is unmounted without waiting for it (kubernetes#139275)
	staleHandleMarker                      // a path that stat cannot find and access can is a mount that is corrupted (kubernetes#106906: 1.24, back to 1.21)
	retriesOnceMarker                      // why a volume that is not mounted is not taken up again at the start
	retriesMarker                          // such a volume is taken up again all the same
	markerCount
)

// They are put together here so that our own programs do not have them.
var programMarkers = [markerCount][]byte{
	replacesMarker:    markerText("error", "checking", "subpath", "mount", "info"),
	bindsMarker:       markerText("Skipping", "bind-mounting", "subpath"),
	corruptedMarker:   markerText("Detected", "corrupted", "mount", "at"),
	lazyMarker:        markerText("error", "lazy-unmounting", "stale", "subpath", "mount"),
	staleHandleMarker: markerText("Potential", "stale", "file", "handle", "detected"),
	retriesOnceMarker: markerText("volume:", "%q", "is", "not", "mounted"),
	retriesMarker:     markerText("Volume", "is", "marked", "as", "uncertain", "and", "added", "into", "the", "actual", "state"),
}

func markerText(words ...string) []byte { return []byte(strings.Join(words, " ")) }

const (
	maxProgramBytes = 1 << 30 // that are read of a program
	programChunk    = 1 << 20 // bytes at a time
)

// lastRead has the markers of the program of the last process.
var lastRead struct {
	sync.Mutex
	of  string // the process
	has [markerCount]bool
}

// programMarkers returns which of the texts the kubelet's program has; no text if there is no kubelet process.
func (n *Node) programMarkers() (has [markerCount]bool, err error) {
	if n.Program != "" {
		return markersOf(n.Program)
	}
	if n.PID == 0 {
		return has, nil
	}
	program := n.process.dir + "/exe"
	process := program + " " + strconv.Itoa(n.PID) + " " + n.process.started
	lastRead.Lock()
	defer lastRead.Unlock()
	if lastRead.of == process {
		return lastRead.has, nil
	}
	if has, err = markersOf(program); err == nil { // a program that could not be read may be readable the next time
		lastRead.of, lastRead.has = process, has
	}
	return has, err
}

// hasMarker reports whether the kubelet's program has a text. If it has neither that nor the other one, the error is
// unknown.
func (n *Node) hasMarker(marker, other programMarker, unknown error) (bool, error) {
	has, err := n.programMarkers()
	switch {
	case err != nil:
		return false, err
	case has[marker] || has[other]:
		return has[marker], nil
	case n.Program == "" && n.PID == 0:
		return false, fmt.Errorf("%w: there is no kubelet process", unknown)
	}
	return false, fmt.Errorf("%w: its program has none of the known texts", unknown)
}

func markersOf(program string) (has [markerCount]bool, err error) {
	f, err := os.Open(program)
	if err != nil {
		return has, fmt.Errorf("open program of kubelet: %w", err)
	}
	defer f.Close()
	if texts := readOnlyData(f); texts != nil {
		if has, err = markersIn(texts); err == nil && has[bindsMarker] {
			return has, nil
		}
	}
	if has, err = markersIn(io.LimitReader(f, maxProgramBytes)); err != nil {
		err = fmt.Errorf("read program of kubelet %q: %w", program, err)
	}
	return has, err
}

// markersIn returns which of the texts are read.
func markersIn(r io.Reader) (has [markerCount]bool, err error) {
	overlap := 0
	for _, text := range programMarkers {
		overlap = max(overlap, len(text)-1)
	}
	buf := make([]byte, overlap+programChunk)
	kept := 0
	for {
		n, err := io.ReadFull(r, buf[kept:])
		read := buf[:kept+n]
		for i, text := range programMarkers {
			has[i] = has[i] || bytes.Contains(read, text)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return has, nil
		}
		if err != nil {
			return has, err
		}
		// A text may lie across the end of a chunk.
		kept = copy(buf, read[len(read)-overlap:])
	}
}

// readOnlyData is the part of a program in which its texts are: a sixth of a kubelet. It is nil for a file that is no ELF file of 64 bits
// with such a part. It rests on elf(5).
func readOnlyData(f io.ReaderAt) io.Reader {
	const (
		magic     = "\x7fELF\x02\x01" // 64 bits, the lowest byte first
		name      = ".rodata\x00"
		entrySize = 64 // of a section
	)
	header := make([]byte, 64)
	if _, err := f.ReadAt(header, 0); err != nil || string(header[:len(magic)]) != magic {
		return nil
	}
	table, size := int64(binary.LittleEndian.Uint64(header[0x28:])), binary.LittleEndian.Uint16(header[0x3a:])
	count, ofNames := int(binary.LittleEndian.Uint16(header[0x3c:])), int(binary.LittleEndian.Uint16(header[0x3e:]))
	sections := make([]byte, count*entrySize)
	if size != entrySize || ofNames >= count || table <= 0 {
		return nil
	}
	if _, err := f.ReadAt(sections, table); err != nil {
		return nil
	}
	place := func(i int) (at, size int64) {
		s := sections[i*entrySize:]
		return int64(binary.LittleEndian.Uint64(s[0x18:])), int64(binary.LittleEndian.Uint64(s[0x20:]))
	}
	names, _ := place(ofNames)
	for i := range count {
		found := make([]byte, len(name))
		_, err := f.ReadAt(found, names+int64(binary.LittleEndian.Uint32(sections[i*entrySize:])))
		if at, size := place(i); err == nil && string(found) == name && at > 0 && size > 0 && size <= maxProgramBytes {
			return io.NewSectionReader(f, at, size)
		}
	}
	return nil
}

// errRetriesUnknown is returned if the program does not show how a kubelet handles, at its start, the volumes of pods that are
// gone.
var errRetriesUnknown = errors.New("not known whether this kubelet tries only once")

// RetriesCleanupOnce is about a volume that the kubelet, when it starts, finds in the directory of a pod that is gone,
// and that is not mounted. It reports whether this kubelet tries only once to finish with it: 1.18 does, and then
// forgets the volume. 1.36 takes it up again, and goes on trying until its driver answers; a program that can do either
// counts as such. With a volume that it has mounted itself, each kubelet goes on trying. The answer is read from the
// kubelet's own program, as in ReplacesStaleBinds. It returns an error if there is no kubelet process, or its program has
// no known text.
func (n *Node) RetriesCleanupOnce() (bool, error) {
	retries, err := n.hasMarker(retriesMarker, retriesOnceMarker, errRetriesUnknown)
	return err == nil && !retries, err
}

// clockTicks is the number of ticks in a second. The kernel gives the start time of a process in ticks.
const clockTicks = 100

// Started returns when the kubelet's process has started, by the clock as it is set now.
func (n *Node) Started() (time.Time, error) {
	if !n.Since.IsZero() {
		return n.Since, nil
	}
	if n.PID == 0 {
		return time.Time{}, errors.New("read start of kubelet: there is no kubelet process")
	}
	content, err := readFile(path.Join(path.Dir(n.process.dir), "uptime"))
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	first, _, _ := strings.Cut(content, " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read for how long the machine is up: %w", err)
	}
	at, err := strconv.ParseInt(n.process.started, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read start of kubelet: %w", err)
	}
	return now.Add(time.Duration(at)*time.Second/clockTicks - time.Duration(up*float64(time.Second))), nil
}
