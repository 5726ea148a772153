// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// text is one of those that distinguish kubelets, by its index.
type text int

const (
	renewsText text = iota // an error for when the bind that is there cannot be compared with what the subPath names
	everyText              // every kubelet that binds subPaths says when it keeps one
	onceText               // why a volume that is not mounted is not taken up again at the start
	goesOnText             // such a volume is taken up again all the same
	texts
)

// They are put together here so that our own programs do not have them.
var kubeletTexts = [texts][]byte{
	renewsText: sentence("error", "checking", "subpath", "mount", "info"),
	everyText:  sentence("Skipping", "bind-mounting", "subpath"),
	onceText:   sentence("volume:", "%q", "is", "not", "mounted"),
	goesOnText: sentence("Volume", "is", "marked", "as", "uncertain", "and", "added", "into", "the", "actual", "state"),
}

func sentence(words ...string) []byte { return []byte(strings.Join(words, " ")) }

const (
	maxProgram   = 1 << 30 // how much of a program is read, in bytes
	programChunk = 1 << 20 // how much of it at a time
)

// lastRead is what was read from the program of one process.
var lastRead struct {
	sync.Mutex
	of  string // the process
	has [texts]bool
}

// texts returns which of the texts the kubelet's program has; none if there is no kubelet process.
func (n *Node) texts() (has [texts]bool, err error) {
	if n.Program != "" {
		return textsOf(n.Program)
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
	if has, err = textsOf(program); err == nil { // one that could not be read may be readable the next time
		lastRead.of, lastRead.has = process, has
	}
	return has, err
}

// unknown says why the program's texts are unknown.
func (n *Node) unknown(err error) error {
	if n.Program == "" && n.PID == 0 {
		return fmt.Errorf("%w: there is no kubelet process", err)
	}
	return fmt.Errorf("%w: its program has none of the texts that tell", err)
}

func textsOf(program string) (has [texts]bool, err error) {
	f, err := os.Open(program)
	if err != nil {
		return has, fmt.Errorf("open program of kubelet: %w", err)
	}
	defer f.Close()
	if has, err = findTexts(io.LimitReader(f, maxProgram)); err != nil {
		err = fmt.Errorf("read program of kubelet %q: %w", program, err)
	}
	return has, err
}

// findTexts looks for all texts until the reader ends.
func findTexts(r io.Reader) (has [texts]bool, err error) {
	overlap := 0
	for _, text := range kubeletTexts {
		overlap = max(overlap, len(text)-1)
	}
	buf := make([]byte, overlap+programChunk)
	kept := 0
	for {
		n, err := io.ReadFull(r, buf[kept:])
		read := buf[:kept+n]
		for i, text := range kubeletTexts {
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
