// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"os"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// maxLinks is how many symbolic links the kernel follows in one path.
const maxLinks = 40

// resolveIn follows the symbolic links in name as a process sees them whose root directory is at root, such as
// /proc/123/root. The kernel would take an absolute link behind that as one of our own root directory.
func resolveIn(root, name string) (string, error) {
	return resolveBy(root, name, func(string) error { return nil })
}

// resolveBy is resolveIn that asks check before it looks at a name.
func resolveBy(root, name string, check func(name string) error) (string, error) {
	done, rest, links := "/", name, 0
	for rest != "" {
		var step string
		step, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, step)
		if next == done || step == ".." {
			done = next
			continue
		}
		if err := check(next); err != nil {
			return "", err
		}
		target, err := os.Readlink(root + next)
		switch {
		case errors.Is(err, sys.EINVAL): // no link
			done = next
		case err != nil:
			return "", err
		case links == maxLinks:
			return "", &os.PathError{Op: "resolve", Path: name, Err: sys.ELOOP}
		default:
			links++
			rest = target + "/" + rest
			if path.IsAbs(target) {
				done = "/"
			}
		}
	}
	return done, nil
}
