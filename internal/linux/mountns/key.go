// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

// Key distinguishes mount namespaces in a map: it is the number, or a process in the namespace if the number may not be
// read.
type Key struct {
	inode uint64
	pid   int
}

// Key is the key of the namespace.
func (n Namespace) Key() Key {
	if n.Inode != 0 {
		return Key{inode: n.Inode}
	}
	return Key{pid: n.PID}
}
