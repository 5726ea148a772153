// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// openLink opens the namespace that a link below /proc leads to, and reads which it
// is.
func openLink(link string) (sys.NamespaceFD, Namespace, error) {
	at, err := sys.OpenProcPath(link)
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	defer at.Close()
	fd, ns, err := reopenNamespace(at)
	if errors.Is(err, sys.EINVAL) { // Linux 5.10 follows a link that may not be read to the folder it lies in
		if _, denied := sys.ReadlinkProc(link); denied != nil {
			err = denied
		}
	}
	return fd, ns, err
}

// openNamed opens the namespace that is bound to a file as process pid sees it,
// and reads which it is. It does not wait: ErrMayBlock.
func openNamed(pid int, name string) (sys.NamespaceFD, Namespace, error) {
	seen, err := Of(pid)
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	look := Lookup
	if !seen.IsOwn() {
		look = lookupKnown
	}
	at, err := look(pid, name)
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	defer at.Close()
	return reopenNamespace(at)
}

// reopenNamespace opens a namespace for reading that was opened with O_PATH, after making sure that it is one. A link
// or name may lead to a device or a pipe by now, and the open of such a file may do anything.
func reopenNamespace(at *sys.FD) (sys.NamespaceFD, Namespace, error) {
	// All namespaces lie on one file system.
	major, minor, err := namespaceDevice()
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	st, err := at.Stat(sys.StatType)
	if err == nil && (st.Major != major || st.Minor != minor) {
		err = sys.EINVAL
	}
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	reopened, err := at.Reopen()
	if err != nil {
		return sys.NamespaceFD{}, Namespace{}, err
	}
	fd := sys.NamespaceFD{FD: reopened}
	ns, err := identifyNamespace(fd)
	if err != nil {
		fd.Close()
		return sys.NamespaceFD{}, Namespace{}, err
	}
	return fd, ns, nil
}

// namespaceDevice is the device of the file system that all namespaces lie on: that of
// our own.
func namespaceDevice() (major, minor uint32, err error) {
	own, err := sys.OpenProcPath(sys.ThreadProc("ns/mnt"))
	if err != nil {
		return 0, 0, err
	}
	defer own.Close()
	st, err := own.Stat(sys.StatType)
	return st.Major, st.Minor, err
}

func identifyNamespace(fd sys.NamespaceFD) (Namespace, error) {
	stat, err := fd.Stat(sys.StatIno)
	if err != nil {
		return Namespace{}, err
	}
	info, err := fd.NamespaceInfo()
	if errors.Is(err, sys.ENOTTY) { // before 6.12, whatever kind of namespace it is
		err = fd.ExpectMountNamespace()
	}
	if err != nil {
		return Namespace{}, err
	}
	return Namespace{Inode: stat.Ino, ID: info.ID}, nil
}

// Owned is the namespace with the user namespace that owns it. It has the errors of Do, and EPERM if the owner is
// neither our own nor below that.
func (n Namespace) Owned() (Namespace, error) {
	fd, err := n.openUnlessHung()
	if err == nil {
		defer fd.Close()
		n.UserNamespace, err = fd.OwnerUserNamespace()
	}
	if err != nil {
		return n, fmt.Errorf("read owner of mount namespace %s: %w", n, err)
	}
	return n, nil
}

// Owners returns, by the IDs of the namespaces in the list that still exist, the user namespaces that own them; 0 if the owner cannot be read. It walks
// once over all namespaces of the machine. Owned walks once for each namespace without a process, and any user may have thousands of such namespaces.
// Before Linux 6.12 namespaces have no IDs, and the result is nil.
func Owners(list []Namespace) (owners map[uint64]uint64, err error) {
	if len(list) == 0 || sys.HasNamespaceWalk.Probe() != nil {
		return nil, nil //nolint:nilerr // then namespaces have no IDs
	}
	wanted := map[uint64]bool{}
	for _, n := range list {
		wanted[n.ID] = true
	}
	owners = map[uint64]uint64{}
	err = walkKernelNamespaces(func(fd sys.NamespaceFD, info sys.NamespaceInfo) error {
		if wanted[info.ID] {
			owners[info.ID], _ = fd.OwnerUserNamespace() // 0 if it cannot be read
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read owners of mount namespaces: %w", err)
	}
	return owners, nil
}

// findOpen opens the namespace wherever it may be found: at its process, where
// it was seen open or bound, or among all namespaces of the machine.
func (n Namespace) findOpen() (sys.NamespaceFD, error) {
	failure := error(sys.ENOENT)
	var ways []func() (sys.NamespaceFD, Namespace, error)
	if n.PID != 0 {
		ways = append(ways, func() (sys.NamespaceFD, Namespace, error) { return openLink(strconv.Itoa(n.PID) + "/ns/mnt") })
	}
	if n.Link != "" {
		ways = append(ways, func() (sys.NamespaceFD, Namespace, error) { return openLink(n.Link) })
	}
	if n.Name != "" {
		ways = append(ways, func() (sys.NamespaceFD, Namespace, error) { return openNamed(n.Via, n.Name) })
	}
	for _, open := range ways {
		fd, found, err := open()
		if err == nil && n.Same(found) {
			return fd, nil
		}
		fd.Close()
		if failure = err; err == nil {
			failure = ErrChanged
		}
	}
	if fd := n.searchOpen(); fd.FD != nil {
		return fd, nil
	}
	return sys.NamespaceFD{}, failure
}

// searchOpen opens the namespace with our number, wherever it is; empty if it
// is not found.
func (n Namespace) searchOpen() sys.NamespaceFD {
	if n.ID == 0 || sys.HasNamespaceWalk.Probe() != nil {
		return sys.NamespaceFD{}
	}
	var found sys.NamespaceFD
	// The walk ends with the first error, and so at the wanted namespace.
	_ = walkKernelNamespaces(func(fd sys.NamespaceFD, info sys.NamespaceInfo) error {
		if info.ID != n.ID {
			return nil
		}
		if ns, err := identifyNamespace(fd); err == nil && n.Same(ns) {
			found.FD, _ = fd.Dup()
		}
		return errFound
	})
	return found
}

var errFound = errors.New("found")

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
