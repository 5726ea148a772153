// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// stoppedServer is a FUSE file system whose server is stopped, and a watch on it.
type stoppedServer struct {
	dir     string
	mount   mountns.Mount
	server  *kerneltest.Actor
	control *fuse.Control
}

func startStopped(t *testing.T) *stoppedServer {
	t.Helper()
	s := &stoppedServer{dir: t.TempDir()}
	s.server = kerneltest.FUSE(t, s.dir)
	s.mount = mountAtPoint(t, s.dir)
	t.Cleanup(s.server.Kill) // SIGKILL ends one that is stopped, too
	var err error
	s.control, err = fuse.Open()
	must(t, err)
	t.Cleanup(func() { must(t, s.control.Close()) })
	s.signalServer(t, "STOP")
	return s
}

func (s *stoppedServer) signalServer(t *testing.T, name string) {
	t.Helper()
	must(t, exec.Command("kill", "-"+name, strconv.Itoa(s.server.PID)).Run())
}

// awaitRequests returns once that many requests wait.
func (s *stoppedServer) awaitRequests(t *testing.T, count int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := s.control.Connection(s.mount.Minor)
		must(t, err)
		if c.Waiting >= count {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", c.Waiting, count)
		}
	}
}

type outcome struct {
	fault.Applied
	err error
}

// startAbort begins to abort.
func (s *stoppedServer) startAbort(ctx context.Context, silence time.Duration) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		done, err := (&Inspector{Silence: silence}).abort(ctx, s.mount)
		out <- outcome{done, err}
	}()
	return out
}

// resumeServer lets the server go on, which must still be connected.
func (s *stoppedServer) resumeServer(t *testing.T) {
	t.Helper()
	s.signalServer(t, "CONT")
	if _, err := os.Stat(filepath.Join(s.dir, "dir")); err != nil {
		t.Errorf("the file system: %v, want that it goes on", err)
	}
}

// TestAServerThatGoesOn: it was only slow, and nothing of it is lost.
func TestAServerThatGoesOn(t *testing.T) {
	s := startStopped(t)
	out := s.startAbort(t.Context(), time.Hour)
	s.awaitRequests(t, 1)
	s.resumeServer(t)
	if o := <-out; !errors.Is(o.err, ErrRefused) || !strings.Contains(o.err.Error(), "did not stay silent: after ") {
		t.Errorf("%q, %v, want that it is refused", o.Message, o.err)
	}
	s.resumeServer(t)
}

// TestServerThatNeverAnswers is aborted, and not before its time.
func TestServerThatNeverAnswers(t *testing.T) {
	const silence = 300 * time.Millisecond
	s, began := startStopped(t), time.Now()
	o := <-s.startAbort(t.Context(), silence)
	if o.err != nil || !strings.Contains(o.Message, "one question was not answered for ") || !strings.Contains(o.Message, " requests waited") {
		t.Fatalf("%q, %v", o.Message, o.err)
	}
	if took := time.Since(began); took < silence {
		t.Errorf("aborted after %s", took)
	}
	if c, err := s.control.Connection(s.mount.Minor); err == nil && !c.Dead {
		t.Errorf("connection: %+v, want it dead", c)
	}
}

// TestKilledProcessDelaysAbort: a request that is taken back looks like an answer. The silence begins again then.
func TestKilledProcessDelaysAbort(t *testing.T) {
	const silence = 2 * time.Second
	s := startStopped(t)
	other := exec.Command("stat", filepath.Join(s.dir, "dir"))
	must(t, other.Start())
	s.awaitRequests(t, 1)
	out := s.startAbort(t.Context(), silence)
	s.awaitRequests(t, 2)
	killed := time.Now()
	must(t, other.Process.Kill())
	if err := other.Wait(); err == nil {
		t.Error("stat ended with success, want that it is killed")
	}
	if o := <-out; o.err != nil || !strings.Contains(o.Message, "one question was not answered for ") {
		t.Fatalf("%q, %v, want that it is aborted", o.Message, o.err)
	}
	if took := time.Since(killed); took < silence {
		t.Errorf("aborted %s after a request was taken back, want %s", took, silence)
	}
}

// TestAnAbortThatIsCalledOff leaves the connection as it is.
func TestAnAbortThatIsCalledOff(t *testing.T) {
	s := startStopped(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := s.startAbort(ctx, time.Hour)
	s.awaitRequests(t, 1)
	cancel()
	if o := <-out; !errors.Is(o.err, context.Canceled) {
		t.Errorf("%q, %v, want that it is called off", o.Message, o.err)
	}
	s.resumeServer(t)
}

// TestAnAbortThatThereIsNoTimeFor is refused at once.
func TestAnAbortThatThereIsNoTimeFor(t *testing.T) {
	s := startStopped(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	if o := <-s.startAbort(ctx, time.Hour); !errors.Is(o.err, ErrRefused) || !strings.Contains(o.err.Error(), "must be silent for 1h0m0s") {
		t.Errorf("%q, %v, want that it is refused", o.Message, o.err)
	}
	s.resumeServer(t)
}

// TestAbortOfWhatHasGoneMeanwhile: the driver mounts again at the last moment. Until then the question that waits keeps the
// old file system, and with it the numbers of mount and connection, which are all that a kernel before 6.8 has.
func TestAbortOfWhatHasGoneMeanwhile(t *testing.T) {
	s := startStopped(t)
	monitor, stop := (&Inspector{}).watchConnection(t.Context(), s.control, s.mount, 300*time.Millisecond)
	defer stop()
	done, err := monitor.waitSilent(t.Context())
	if err != nil || done != (fault.Applied{}) {
		t.Fatalf("%+v, %v, want that it is silent", done, err)
	}
	must(t, systest.UnmountPath(s.dir, true))
	kerneltest.FUSE(t, s.dir)
	if now := mountAtPoint(t, s.dir); now.Minor == s.mount.Minor {
		t.Logf("the new connection has the number of the old, %d", now.Minor)
	}
	if err = abortConnection(t.Context(), s.control, s.mount, monitor.checkLastTime); !errors.Is(err, ErrRefused) {
		t.Errorf("%v, want that it is refused", err)
	}
	t.Log(err)
	if _, err := os.Stat(filepath.Join(s.dir, "dir")); err != nil {
		t.Errorf("the new file system: %v, want that it goes on", err)
	}
}

// TestAServerThatEnds while it is waited for.
func TestAServerThatEnds(t *testing.T) {
	s := startStopped(t)
	out := s.startAbort(t.Context(), time.Hour)
	s.awaitRequests(t, 1)
	s.server.Kill()
	if o := <-out; o.err != nil || !o.Already {
		t.Errorf("%q, %v, want that there is nothing to do", o.Message, o.err)
	}
}
