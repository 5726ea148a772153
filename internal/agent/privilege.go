// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"kubediag.org/kubediag/internal/linux/sys"
)

// dropPrivileges keeps the capabilities that the agent uses of those that "privileged" gives it, for all of the program and for the processes that
// it starts. Scripts have all that root has: with them, nothing is dropped.
func dropPrivileges(o options) error {
	if o.EnableScripts {
		return nil
	}
	err := sys.DropPrivileges(
		sys.CapSysAdmin,       // to mount, to enter mount namespaces, to detach devices
		sys.CapSysChroot,      // to enter mount namespaces
		sys.CapSysPtrace,      // to look at the namespaces, the root and the descriptors of processes
		sys.CapDACOverride,    // to remove files from directories of other users
		sys.CapDACReadSearch,  // to look up paths in directories of other users
		sys.CapFowner,         // to read such directories without a trace, and to remove from sticky ones
		sys.CapMknod,          // to open a device that has no node where the agent is
		sys.CapSyslog,         // to read the kernel's log
		sys.CapNetBindService, // to listen on the ports that flags name
	)
	if err != nil {
		return fmt.Errorf("dropping privileges that the agent does not use: %w", err)
	}
	return nil
}
