// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountinfo reads the text of /proc/PID/mountinfo and answers
// questions about the mounts in it. Bytes go in, values come out: it opens no
// file, so the same code reads a recorded file, another process' table or the
// kernel's answer of this instant.
//
// Two ways in. ParseBytes and Table give whole mounts as values. Lines and the methods
// of Line allocate nothing and look only at the columns they need, for passes over
// every mount of a machine.
//
// It matches paths by component and mounts by ID, never by string prefix. It
// does not say whether a mount is healthy: the mark "//deleted" is a candidate
// that only the file itself can confirm.
//
// It rests on proc_pid_mountinfo(5), Documentation/filesystems/proc.rst 3.5,
// and fs/proc_namespace.c and fs/d_path.c of the kernel for escapes and marks.
//
// When not to use it: the text is not a snapshot, as the kernel lets go of its lock between pages. It costs about 3
// microseconds a mount to produce, hides mounts outside the process' root, and the kernel reuses its mount IDs. Package
// mount identifies a mount that is to be changed.
package mountinfo

import (
	"strings"
)

// Mount is one line. Its strings may share memory with the whole text they came from; strings.Clone those that are kept
// for long.
type Mount struct {
	// ID is used again once the mount is gone. Parent is the mount that this
	// one is mounted on; the topmost mount's parent is not in the text.
	ID, Parent int
	// Major and Minor are the file system's device, 0:N where it has none.
	Major, Minor uint32
	// Root is the directory or file of the file system that is mounted,
	// unescaped, with the kernel's mark "//deleted" where that name has been
	// unlinked. It need not begin with a slash ("mnt:[4026531841]").
	Root string
	// Point is the path of the mount, relative to the process' root, unescaped.
	Point string
	// Options belong to this mount, as written ("rw,nosuid").
	Options string
	// Shared is the peer group the mount shares with, Master the one it
	// receives from, PropagateFrom the nearest dominant one; 0 is none.
	Shared, Master, PropagateFrom int
	// Unbindable mounts cannot be bound elsewhere.
	Unbindable bool
	// FSType is the type with its subtype ("fuse.sshfs"), unescaped.
	FSType string
	// Source names the origin of the file system, unescaped; may be empty.
	Source string
	// SuperOptions belong to the file system, as written.
	SuperOptions string
}

// deletedMark is the suffix that the kernel appends to the path of an unlinked dentry. No name holds a slash, so a path
// that ends in it cannot be a real one.
const deletedMark = "//deleted"

// Deleted reports whether root carries the kernel's mark of an unlinked name,
// and returns the path without it. Escaped and unescaped roots serve alike.
func Deleted(root string) (path string, ok bool) {
	if len(root) <= len(deletedMark) || !strings.HasSuffix(root, deletedMark) {
		return root, false
	}
	return root[:len(root)-len(deletedMark)], true
}

// Deleted reports whether the mount's root carries the kernel's mark. The name
// is gone then; the file may live on under another, and for FUSE even under
// the same. Look at the link count before calling it lost.
func (m Mount) Deleted() bool {
	_, ok := Deleted(m.Root)
	return ok
}

// Unescape undoes the kernel's escapes: a backslash and exactly three octal
// digits stand for one byte. Anything else stays as it is.
func Unescape(s string) string {
	first := strings.IndexByte(s, '\\')
	if first < 0 {
		return s
	}
	var text strings.Builder
	text.Grow(len(s))
	for i := first; ; {
		text.WriteString(s[:i])
		s = s[i:]
		if c, ok := decodeOctal(s); ok {
			text.WriteByte(c)
			s = s[4:]
		} else {
			text.WriteByte('\\')
			s = s[1:]
		}
		if i = strings.IndexByte(s, '\\'); i < 0 {
			text.WriteString(s)
			return text.String()
		}
	}
}

// decodeOctal reads the escape that s begins with.
func decodeOctal[T string | []byte](s T) (byte, bool) {
	if len(s) < 4 || s[1] > '3' {
		return 0, false
	}
	var c byte
	for i := 1; i < 4; i++ {
		d := s[i]
		if d < '0' || d > '7' {
			return 0, false
		}
		c = c<<3 | (d - '0')
	}
	return c, true
}
