// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package loopback gives tests loop devices on a machine on which others take and free some, too: a number that is free may
// be taken by another before it is used, and one that was freed may be another's device at once. It is for tests alone.
package loopback

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const losetup = "/usr/sbin/losetup"

// Attach makes a loop device of a file, with more options of losetup, and returns its node. The caller removes it with
// Detach.
func Attach(t testing.TB, file string, options ...string) (node string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, err := exec.Command(losetup, append(options, "--find", "--show", file)...).CombinedOutput()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
		if time.Now().After(deadline) {
			t.Fatalf("losetup %s: %v\n%s", file, err, out)
		}
	}
}

// Detach frees the device if it is still that of the file, and reports whether it is free then: the kernel frees one that is
// busy when its last user goes.
func Detach(t testing.TB, node, file string) bool {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Second); isOf(node, file); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		if out, err := exec.Command(losetup, "--detach", node).CombinedOutput(); err != nil && isOf(node, file) {
			t.Errorf("losetup --detach %s: %v\n%s", node, err, out)
		}
	}
	return true
}

// isOf reports whether a loop device is that of a file.
func isOf(node, file string) bool {
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(node), "loop/backing_file"))
	return err == nil && strings.TrimSpace(string(text)) == file
}
