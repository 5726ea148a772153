// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"os"

	"kubediag.org/kubediag/internal/linux/sys"
)

// resolveIn follows the symbolic links in name as a process sees them whose root directory is at root, such as
// /proc/123/root. The kernel would follow an absolute link behind that from our own root directory. A check is
// called with each file on the way before any other call on that file.
func resolveIn(root, name string, check func(name string, at *sys.FD) error) (string, error) {
	dir, err := sys.OpenRoot(cmp.Or(root, "/"))
	if err != nil {
		return "", &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer dir.Close()
	fd, resolved, err := sys.Walk{Root: dir, Check: check}.Resolve(name)
	if err != nil {
		return "", &os.PathError{Op: "resolve", Path: root + resolved, Err: err}
	}
	fd.Close()
	return resolved, nil
}
