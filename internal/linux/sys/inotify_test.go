// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// eventRecord is a struct inotify_event with its name filled up to room bytes.
func eventRecord(watch int32, mask uint32, name string, room int) []byte {
	var b bytes.Buffer
	for _, part := range []any{watch, mask, uint32(7), uint32(room)} {
		_ = binary.Write(&b, binary.NativeEndian, part)
	}
	b.WriteString(name)
	b.Write(make([]byte, room-len(name)))
	return b.Bytes()
}

func TestParseEvents(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("x", 16)
	buf := bytes.Join([][]byte{
		eventRecord(1, unix.IN_ATTRIB, "", 0),
		eventRecord(2, unix.IN_DELETE|unix.IN_ISDIR, "..2021_06_02", 16),
		eventRecord(3, unix.IN_CREATE, full, 16), // no zero at its end
		eventRecord(4, unix.IN_CREATE, "n\n\xff", 32),
		eventRecord(-1, unix.IN_Q_OVERFLOW, "", 0),
	}, nil)
	want := []Event{
		{Watch: 1, Mask: WatchAttrib},
		{Watch: 2, Mask: WatchDelete | unix.IN_ISDIR, Name: "..2021_06_02"},
		{Watch: 3, Mask: unix.IN_CREATE, Name: full},
		{Watch: 4, Mask: unix.IN_CREATE, Name: "n\n\xff"},
		{Watch: -1, Mask: WatchOverflow},
	}
	if diff := cmp.Diff(want, parseEvents(buf)); diff != "" {
		t.Error(diff)
	}
	for cut := range buf { // nor does a text that ends anywhere lead outside
		if got := parseEvents(buf[:cut]); len(got) > len(want) {
			t.Errorf("%d events of %d bytes", len(got), cut)
		}
	}
	lying := eventRecord(1, unix.IN_CREATE, "name", 16)
	binary.NativeEndian.PutUint32(lying[12:], 1<<32-1)
	if diff := cmp.Diff([]Event{{Watch: 1, Mask: unix.IN_CREATE, Name: "name"}}, parseEvents(lying)); diff != "" {
		t.Error(diff)
	}
}

func newTestWatcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func addWatch(t *testing.T, w *Watcher, path string, mask uint32) int {
	t.Helper()
	fd, err := Lookup(path)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	watch, err := w.Add(fd, mask)
	if err != nil {
		t.Fatal(err)
	}
	return watch
}

// awaitEvents reads until the watch has reported every bit of mask, and fails
// after ten seconds.
func awaitEvents(t *testing.T, w *Watcher, watch int, mask uint32) {
	t.Helper()
	if err := w.file.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for missing := mask; missing != 0; {
		events, err := w.Read()
		if err != nil {
			t.Fatalf("wait for %#x of watch %d: %v", missing, watch, err)
		}
		for _, e := range events {
			if e.Watch == watch {
				missing &^= e.Mask
			}
		}
	}
}

func TestWatcherReports(t *testing.T) {
	t.Parallel()
	w, dir := newTestWatcher(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"file", "other", "moved"} {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(at("sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(at("file"), at("link")); err != nil {
		t.Fatal(err)
	}
	parent := addWatch(t, w, dir, WatchDelete|unix.IN_MOVED_TO)
	file := addWatch(t, w, at("file"), WatchAttrib)
	moved := addWatch(t, w, at("moved"), WatchMoveSelf)
	// Nothing is read in between: all of it comes in one piece.
	for _, err := range []error{os.Remove(at("file")), os.Rename(at("moved"), at("away")), os.Remove(at("sub"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	events, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Watch: file, Mask: WatchAttrib},
		{Watch: parent, Mask: WatchDelete, Name: "file"},
		{Watch: parent, Mask: unix.IN_MOVED_TO, Name: "away"},
		{Watch: moved, Mask: WatchMoveSelf},
		{Watch: parent, Mask: WatchDelete | unix.IN_ISDIR, Name: "sub"},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
}

// TestWatcherWatchesInodes: two names of one file are one watch, which reports the events of both Adds.
func TestWatcherWatchesInodes(t *testing.T) {
	t.Parallel()
	w, dir := newTestWatcher(t), t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	if err := errors.Join(os.WriteFile(one, nil, 0o600), os.Link(one, two)); err != nil {
		t.Fatal(err)
	}
	first, second := addWatch(t, w, one, WatchMoveSelf), addWatch(t, w, two, WatchAttrib)
	if first != second {
		t.Errorf("watches %d and %d of one file", first, second)
	}
	if err := os.Rename(two, two+".moved"); err != nil {
		t.Fatal(err)
	}
	awaitEvents(t, w, first, WatchMoveSelf)
}

func TestWatcherWatchesWhatHasNoName(t *testing.T) {
	t.Parallel()
	w, name := newTestWatcher(t), filepath.Join(t.TempDir(), "file (deleted)")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	watch, err := w.Add(fd, WatchDeleteSelf)
	if err != nil {
		t.Fatal(err)
	}
	fd.Close() // the last that used it
	awaitEvents(t, w, watch, WatchDeleteSelf|WatchIgnored)
}

func TestWatcherRemove(t *testing.T) {
	t.Parallel()
	w, dir := newTestWatcher(t), t.TempDir()
	watch := addWatch(t, w, dir, unix.IN_CREATE)
	if err := w.Remove(watch); err != nil {
		t.Error(err)
	}
	awaitEvents(t, w, watch, WatchIgnored)
	for _, unknown := range []int{watch, 12345, -1, 0} {
		if err := w.Remove(unknown); err != nil {
			t.Errorf("remove watch %d: %v", unknown, err)
		}
	}
	if again := addWatch(t, w, dir, unix.IN_CREATE); again == watch {
		t.Errorf("number %d given again", again)
	}
}

// TestWatcherOverflow fills the queue, which its owner has not read.
func TestWatcherOverflow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	room, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	w, dir := newTestWatcher(t), t.TempDir()
	addWatch(t, w, dir, unix.IN_CREATE|WatchDelete)
	for range room/2 + 1 {
		name := filepath.Join(dir, "x")
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Remove(name)); err != nil {
			t.Fatal(err)
		}
	}
	awaitEvents(t, w, -1, WatchOverflow)
}

// awaitReaders waits until that many goroutines wait in Read.
func awaitReaders(t *testing.T, n int) {
	t.Helper()
	waiting := 0
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		waiting = 0
		for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
			if bytes.Contains(stack, []byte("[IO wait")) && bytes.Contains(stack, []byte("(*Watcher).Read")) {
				waiting++
			}
		}
		if waiting >= n {
			return
		}
	}
	t.Fatalf("%d goroutines wait, want %d", waiting, n)
}

func TestWatcherClose(t *testing.T) {
	w := newTestWatcher(t)
	dir, err := Lookup(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	ended := make(chan error)
	go func() {
		_, err := w.Read()
		ended <- err
	}()
	awaitReaders(t, 1)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("read: %v, want closed", err)
	}
	if _, err := w.Read(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read: %v, want closed", err)
	}
	if _, err := w.Add(dir, unix.IN_CREATE); !errors.Is(err, os.ErrClosed) {
		t.Errorf("add: %v, want closed", err)
	}
	if err := w.Remove(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("remove: %v, want closed", err)
	}
	if err := w.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second close: %v, want closed", err)
	}
}

// TestWatcherWaitsInThePoller: forty that wait take no forty threads.
func TestWatcherWaitsInThePoller(t *testing.T) {
	before, err := ProcThreads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var watchers []*Watcher
	ended := make(chan error)
	for range 40 {
		w := newTestWatcher(t)
		watchers = append(watchers, w)
		go func() {
			_, err := w.Read()
			ended <- err
		}()
	}
	awaitReaders(t, 40)
	after, err := ProcThreads(os.Getpid())
	if err != nil || after > before+20 {
		t.Errorf("%d threads, %d before: %v", after, before, err)
	}
	for _, w := range watchers {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("read ended with %v, want that it is closed", err)
		}
	}
}
