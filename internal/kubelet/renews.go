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

// ErrRenewsUnknown is returned where it cannot be seen whether a kubelet renews subPath binds.
var ErrRenewsUnknown = errors.New("not known whether this kubelet renews subPath binds")

// Texts of the kubelet's program. A kubelet that compares the bind that is there with what the subPath names has an
// error for when it cannot; every kubelet that binds subPaths says when it keeps one. They are put together here so
// that our own programs do not have them.
var (
	renewsText = sentence("error", "checking", "subpath", "mount", "info")
	everyText  = sentence("Skipping", "bind-mounting", "subpath")
)

func sentence(words ...string) []byte { return []byte(strings.Join(words, " ")) }

const (
	maxProgram   = 1 << 30 // how much of a program is read, in bytes
	programChunk = 1 << 20 // how much of it at a time
)

// renewal is what was read from the program of one process.
var renewal struct {
	sync.Mutex
	of     string // the process
	renews bool
	err    error
}

// Renews tells whether this kubelet itself replaces a subPath bind whose source is another one by now: Kubernetes 1.19
// and later, and wherever that was back-ported. It is read from the kubelet's own program, once per process: at most
// 1 GiB of it. ErrRenewsUnknown, which counts as not, where there is no kubelet process, or its program has none of
// the texts that tell.
func (n *Node) Renews() (bool, error) {
	if n.Program != "" {
		return renewsOf(n.Program)
	}
	if n.PID == 0 {
		return false, fmt.Errorf("%w: there is no kubelet process", ErrRenewsUnknown)
	}
	program := n.process.dir + "/exe"
	process := program + " " + strconv.Itoa(n.PID) + " " + n.process.started
	renewal.Lock()
	defer renewal.Unlock()
	if renewal.of == process {
		return renewal.renews, renewal.err
	}
	renews, err := renewsOf(program)
	// A program that could not be read may be readable the next time.
	if err == nil || errors.Is(err, ErrRenewsUnknown) {
		renewal.of, renewal.renews, renewal.err = process, renews, err
	}
	return renews, err
}

func renewsOf(program string) (bool, error) {
	f, err := os.Open(program)
	if err != nil {
		return false, fmt.Errorf("open program of kubelet: %w", err)
	}
	defer f.Close()
	renews, every, err := findTexts(io.LimitReader(f, maxProgram))
	switch {
	case renews:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read program of kubelet %q: %w", program, err)
	case every:
		return false, nil
	}
	return false, fmt.Errorf("%w: its program %q has none of the texts that tell", ErrRenewsUnknown, program)
}

// findTexts looks for both texts until the first is found or the reader ends.
func findTexts(r io.Reader) (renews, every bool, err error) {
	overlap := max(len(renewsText), len(everyText)) - 1
	buf := make([]byte, overlap+programChunk)
	kept := 0
	for {
		n, err := io.ReadFull(r, buf[kept:])
		text := buf[:kept+n]
		every = every || bytes.Contains(text, everyText)
		if bytes.Contains(text, renewsText) {
			return true, every, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, every, nil
		}
		if err != nil {
			return false, every, err
		}
		// A text may lie across the end of a chunk.
		kept = copy(buf, text[len(text)-overlap:])
	}
}
