// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, nil) }

var must = kerneltest.Must

// servedMount is a file system that a process of the test serves.
type servedMount struct {
	dir    string
	minor  uint32
	server *kerneltest.Actor
}

func newServedMount(t testing.TB) servedMount {
	t.Helper()
	dir := t.TempDir()
	server := kerneltest.FUSE(t, dir)
	fd, err := sys.Lookup(dir)
	must(t, err)
	defer fd.Close()
	st, err := fd.Stat(sys.StatType)
	must(t, err)
	return servedMount{dir: dir, minor: st.Minor, server: server}
}

func open(t testing.TB) *Control {
	t.Helper()
	c, err := Open()
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// awaitConnection waits until the connection has the wanted state.
func (m servedMount) awaitConnection(t *testing.T, c *Control, what string, ok func(Connection) bool) {
	t.Helper()
	var got Connection
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var err error
		if got, err = c.Connection(m.minor); err != nil {
			t.Fatal(err)
		}
		if ok(got) {
			return
		}
	}
	t.Errorf("connection %+v, want one that is %s", got, what)
}

func isDead(c Connection) bool     { return c.Dead }
func isQuiet(c Connection) bool    { return !c.Dead && c.Waiting == 0 }
func hasWaiting(c Connection) bool { return !c.Dead && c.Waiting > 0 }

// statInBackground has a process' worth of waiting done by a goroutine: it asks the file
// system for something and gives the error.
func (m servedMount) statInBackground(name string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := os.Lstat(filepath.Join(m.dir, name))
		done <- err
	}()
	return done
}

func TestConnectionDistinguishesDeadServers(t *testing.T) {
	c := open(t)
	m := newServedMount(t)
	m.awaitConnection(t, c, "alive and quiet", isQuiet)
	m.server.Kill()
	m.awaitConnection(t, c, "dead", isDead)
	if _, err := os.Stat(m.dir); !errors.Is(err, sys.ENOTCONN) {
		t.Errorf("stat: %v, want ENOTCONN", err)
	}
	must(t, systest.UnmountPath(m.dir, false))
	if _, err := c.Connection(m.minor); !errors.Is(err, ErrNoConnection) {
		t.Errorf("connection of nothing: %v, want ErrNoConnection", err)
	}
	if err := c.Abort(m.minor); !errors.Is(err, ErrNoConnection) {
		t.Errorf("abort of nothing: %v, want ErrNoConnection", err)
	}
}

// TestOpenMountsNothing: the control file system is in no mount table.
func TestOpenMountsNothing(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	open(t)
	after, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if string(before) != string(after) {
		t.Errorf("mount table was %s\nis %s", before, after)
	}
}

// TestStoppedServer: requests wait, and the server is found and is stopped.
func TestStoppedServer(t *testing.T) {
	c := open(t)
	m := newServedMount(t)
	m.signalServer(t, "STOP")
	t.Cleanup(func() { m.signalServer(t, "CONT") })
	kerneltest.Await(t, "the server is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.server.PID))
		must(t, err)
		return strings.Contains(string(stat), ") T ")
	})
	t.Run("named", func(t *testing.T) {
		if state := m.serverState(t); state != 'T' {
			t.Errorf("state %q, want T", state)
		}
	})
	done := m.statInBackground("dir")
	m.awaitConnection(t, c, "waited for", hasWaiting)
	m.signalServer(t, "CONT")
	if err := <-done; err != nil {
		t.Errorf("asked of a server that goes on: %v", err)
	}
	m.awaitConnection(t, c, "quiet again", isQuiet)
}

func (m servedMount) signalServer(t *testing.T, name string) {
	t.Helper()
	must(t, exec.Command("sh", "-c", fmt.Sprintf("kill -%s %d", name, m.server.PID)).Run())
}

// serverState finds the one server of the connection.
func (m servedMount) serverState(t *testing.T) byte {
	t.Helper()
	servers, unseen, err := Servers(t.Context())
	must(t, err)
	if strings.HasSuffix(unseen, "Linux 6.16") {
		kerneltest.Needs(t, sys.HasFUSEServer)
		t.Errorf("servers that the kernel does not show: %q, though it has the feature", unseen)
	}
	found := servers[m.minor]
	at := slices.IndexFunc(found, func(s Server) bool { return s.PID == m.server.PID })
	if at < 0 || len(found) != 1 || found[at].Command == "" {
		t.Fatalf("servers of connection %d: %+v, want process %d", m.minor, found, m.server.PID)
	}
	return found[at].State
}

func TestServersFindsNoneOfTheDead(t *testing.T) {
	alive, dead := newServedMount(t), newServedMount(t)
	dead.server.Kill()
	if state := alive.serverState(t); state != 'S' && state != 'R' {
		t.Errorf("state %q, want S", state)
	}
	servers, _, err := Servers(t.Context())
	must(t, err)
	if found := servers[dead.minor]; found != nil {
		t.Errorf("servers of a dead connection: %+v", found)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Servers(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("servers: %v, want context.Canceled", err)
	}
}

// TestAbort: requests that hang fail, and the mount is dead, with its server alive.
func TestAbort(t *testing.T) {
	c := open(t)
	m, other := newServedMount(t), newServedMount(t)
	done := m.statInBackground("hang")
	m.awaitConnection(t, c, "waited for", hasWaiting)
	must(t, c.Abort(m.minor))
	if err := <-done; err == nil {
		t.Error("what hung has succeeded")
	}
	m.awaitConnection(t, c, "dead", isDead)
	if _, err := os.Stat(m.dir); !errors.Is(err, sys.ENOTCONN) {
		t.Errorf("stat: %v, want ENOTCONN", err)
	}
	other.awaitConnection(t, c, "alive and quiet", isQuiet)
	must(t, c.Abort(m.minor)) // it is dead already
}

// TestOpenElsewhere opens it where it is mounted, and refuses another one.
func TestOpenElsewhere(t *testing.T) {
	m := newServedMount(t)
	dir := t.TempDir()
	must(t, sys.NewMount("none", dir, "fusectl", ""))
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
	root, err := sys.OpenFUSEControl(dir)
	must(t, err)
	c, err := newControl(root)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	m.awaitConnection(t, c, "alive and quiet", isQuiet)
	if fd, err := sys.OpenFUSEControl(t.TempDir()); !errors.Is(err, sys.ENODEV) {
		fd.Close()
		t.Errorf("open of another file system: %v, want ENODEV", err)
	}
}

// pastSlack waits until a new mount is known to be younger than the control file system.
func (c *Control) pastSlack() {
	for time.Since(c.knownMounted) <= clockSlack+20*time.Millisecond { // a tick of the clock, and one to be sure
		time.Sleep(10 * time.Millisecond)
	}
}

// connectionSince asks for a connection that is there.
func (m servedMount) connectionSince(t *testing.T, c *Control) (time.Time, bool) {
	t.Helper()
	at, known, err := c.Since(m.minor)
	must(t, err)
	if known == at.IsZero() || known && at.Location() != time.UTC {
		t.Errorf("since %v, known %v", at, known)
	}
	return at, known
}

// TestSince: a connection's age is known, whatever becomes of its server and of other connections.
func TestSince(t *testing.T) {
	c := open(t)
	c.pastSlack()
	before := time.Now()
	m, other := newServedMount(t), newServedMount(t)
	after := time.Now()
	same := func(what string) {
		t.Helper()
		at, known := m.connectionSince(t, c)
		if !known || at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second)) {
			t.Errorf("%s: since %v, known %v; it was mounted from %v to %v", what, at, known, before, after)
		}
	}
	same("alive")
	m.awaitConnection(t, c, "alive and quiet", isQuiet)
	same("read")
	m.server.Kill()
	m.awaitConnection(t, c, "dead", isDead)
	same("dead")
	must(t, c.Abort(m.minor))
	same("aborted")
	must(t, systest.UnmountPath(other.dir, true))
	if at, known, err := c.Since(other.minor); !errors.Is(err, ErrNoConnection) || known || !at.IsZero() {
		t.Errorf("since when nothing is there: %v, %v, %v, want ErrNoConnection", at, known, err)
	}
	newServedMount(t)
	same("another came and went")
}

// TestSinceOfTheOlder: of a connection that was there before, a time that is told is right. Whether there is one
// depends on who else has the control file system open on this machine.
func TestSinceOfTheOlder(t *testing.T) {
	before := time.Now()
	m := newServedMount(t)
	after := time.Now()
	c := open(t)
	if c.knownMounted.After(time.Now()) {
		t.Errorf("the control file system was made at %v, and it is %v", c.knownMounted, time.Now())
	}
	at, known := m.connectionSince(t, c)
	if known && (at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second))) {
		t.Errorf("since %v; it was mounted from %v to %v", at, before, after)
	}
	t.Logf("known: %v", known)
	// As if the control file system had been made after it, and the connection been taken in late.
	st, err := c.root.StatAt(fmt.Sprint(m.minor), sys.StatChanged)
	must(t, err)
	for _, late := range []time.Duration{0, clockSlack / 2, clockSlack} {
		c.knownMounted = st.Changed.Add(-late)
		if at, known := m.connectionSince(t, c); known {
			t.Errorf("since %v in a file system made at %v", at, c.knownMounted)
		}
	}
}
