// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// aptTree makes directories for apt-get that only this test uses. It returns the options that name them, and the lock
// files by what needs them.
func aptTree(t *testing.T) (options []string, locks map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"lists/partial", "archives/partial", "etc/sources.list.d", "dpkg"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etc/sources.list", "dpkg/status"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for option, name := range map[string]string{
		"Dir::State": ".", "Dir::State::lists": "lists", "Dir::State::status": "dpkg/status", "Dir::Cache": ".",
		"Dir::Cache::archives": "archives", "Dir::Etc": "etc",
	} {
		options = append(options, "-o", option+"="+filepath.Join(dir, name))
	}
	return options, map[string]string{
		"update": filepath.Join(dir, "lists/lock"), "clean": filepath.Join(dir, "archives/lock"),
		"install": filepath.Join(dir, "dpkg/lock-frontend"),
	}
}

// hold takes a lock as apt-get does, for as long as the file is open.
func hold(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(name)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestAptWaitsForLocks holds each of apt-get's locks.
func TestAptWaitsForLocks(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"update", "clean", "install"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			options, locks := aptTree(t) // the commands would lock each other out of one tree
			held := hold(t, locks[command])
			defer held.Close()
			released, began := make(chan time.Time, 1), time.Now()
			time.AfterFunc(3*retry/2, func() {
				released <- time.Now()
				held.Close()
			})
			if err := apt(t.Context(), append([]string{command}, options...)...); err != nil {
				t.Fatal(err)
			}
			if ended := time.Now(); ended.Before(<-released) {
				t.Errorf("apt-get ended after %v, while its lock was held", ended.Sub(began))
			}
		})
	}
}

func TestAptFails(t *testing.T) {
	t.Parallel()
	began := time.Now()
	err := apt(t.Context(), "no-such-command")
	if err == nil || errors.Is(err, t.Context().Err()) || time.Since(began) > patience/2 {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
