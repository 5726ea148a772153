// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// walkKernelNamespaces visits every mount namespace once: from our own to the first, and from
// our own to the last. The kernel's order is not that of creation.
func walkKernelNamespaces(visit func(fd sys.NamespaceFD, info sys.NamespaceInfo) error) error {
	walks.Add(1)
	for i, step := range []func(sys.NamespaceFD) (sys.NamespaceFD, sys.NamespaceInfo, error){sys.NamespaceFD.PrevNamespace, sys.NamespaceFD.NextNamespace} {
		fd, err := sys.OpenNamespace(sys.ThreadProc("ns/mnt"))
		if err != nil {
			return err
		}
		info, err := fd.NamespaceInfo()
		if i == 0 && err == nil {
			err = visit(fd, info)
		}
		for err == nil {
			var next sys.NamespaceFD
			next, info, err = step(fd)
			fd.Close()
			fd = next
			if err == nil {
				err = visit(fd, info)
			}
		}
		fd.Close()
		if !procfs.Ended(err) {
			return err
		}
	}
	return nil
}
