// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Server is a process that has a FUSE connection open.
type Server struct {
	PID int
	// Command is the name that the process gives itself, at most 15 bytes of
	// any kind.
	Command string
	// State is the state of its main thread, as in proc_pid_stat(5): 'T' is stopped.
	State byte
}

// Servers finds the processes that serve FUSE connections, by the number of the connection, which is the minor number
// of the device of its mounts. unseen explains why a connection without a server here may have one all the same. The
// kernel does not report it (before 6.16), or a process does not show, cannot be inspected, does not answer, or has more than 1,024
// descriptors: only the first ones are read, since a daemon opens /dev/fuse early and any user may have a million. If it is empty, only
// a server that has renamed its /dev/fuse is missed. It lists at most MaxServers of a connection.
func Servers(ctx context.Context) (servers map[uint32][]Server, unseen string, err error) {
	visible, err := sys.ProcVisibility()
	if err != nil {
		return nil, "", err
	}
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return nil, "", err
	}
	s := serverSearch{servers: map[uint32][]Server{}}
	procfs.Each(pids, func(pid int, step func()) (serverProcess, error) {
		if err := ctx.Err(); err != nil {
			return serverProcess{}, err
		}
		return s.inspectProcess(pid, step)
	}, s.addProcess)
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	return s.servers, s.unseenReason(visible), nil
}

// MaxServers is how many servers of one connection are reported: each may have any number of children.
const MaxServers = 16

type serverSearch struct {
	servers map[uint32][]Server
	// connectionShown and connectionHidden: some open /dev/fuse showed its connection, some did not. A /dev/fuse
	// without a mount has no connection.
	connectionShown, connectionHidden bool
	// deniedProcesses counts the processes that may not be inspected, and silentProcesses those that do not answer.
	// withTooMany counts processes of which only the first descriptors were inspected.
	deniedProcesses, silentProcesses, withTooMany int
}

// serverProcess holds the FUSE connections that a process has open.
type serverProcess struct {
	server                            Server // where there are connections
	connections                       []uint32
	connectionShown, connectionHidden bool
	more                              bool
}

// unseenReason explains why servers may be missing.
func (s *serverSearch) unseenReason(visible sys.Visibility) string {
	switch {
	case visible == sys.SeesNamespace:
		return "/proc shows no process outside of this PID namespace"
	case visible == sys.SeesOwn:
		return "/proc does not show the processes of others"
	case s.deniedProcesses == 1:
		return "1 process may not be looked into"
	case s.deniedProcesses > 1:
		return strconv.Itoa(s.deniedProcesses) + " processes may not be looked into"
	case s.silentProcesses == 1:
		return "1 process does not answer"
	case s.silentProcesses > 1:
		return strconv.Itoa(s.silentProcesses) + " processes do not answer"
	case s.withTooMany > 0:
		return fmt.Sprintf("of %d processes that have very many descriptors not all were looked at", s.withTooMany)
	case s.connectionHidden && !s.connectionShown:
		return "the kernel does not name the connection of a descriptor, which needs Linux 6.16"
	}
	return ""
}

// inspectProcess reads the descriptors of a process.
func (s *serverSearch) inspectProcess(pid int, step func()) (opened serverProcess, err error) {
	dir := strconv.Itoa(pid)
	var fds []int
	for range 2 { // for a process that has just ended the kernel may answer that it is not permitted
		if fds, opened.more, err = sys.FirstDescriptors(dir); !errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	for _, fd := range fds {
		step()
		number := strconv.Itoa(fd)
		link, err := sys.ReadlinkProc(dir + "/fd/" + number)
		if err != nil || !mayBeFUSEDevice(link) {
			continue
		}
		value, err := sys.FDInfo(dir+"/fdinfo/"+number, "fuse_connection")
		if err != nil {
			continue
		}
		connection, err := strconv.ParseUint(value, 10, 32)
		opened.connectionShown, opened.connectionHidden = opened.connectionShown || err == nil, opened.connectionHidden || err != nil
		if err == nil && !slices.Contains(opened.connections, uint32(connection)) {
			opened.connections = append(opened.connections, uint32(connection))
		}
	}
	if len(opened.connections) > 0 {
		var stat sys.ProcStat
		if stat, err = sys.ReadProcStat(dir); err != nil {
			opened.connections = nil
		}
		opened.server = Server{PID: pid, Command: stat.Name, State: stat.State}
	}
	return opened, err
}

// addProcess adds the findings of a process. A process that ends meanwhile serves nothing. Process 1 serves nothing
// either: some sandboxes keep it even from a caller who has every privilege.
func (s *serverSearch) addProcess(pid int, opened serverProcess, err error) {
	switch {
	case errors.Is(err, procfs.ErrSilent):
		s.silentProcesses++
	case errors.Is(err, fs.ErrPermission) && (pid != 1 || !sys.LooksAnywhere()):
		s.deniedProcesses++
	}
	if opened.more {
		s.withTooMany++
	}
	s.connectionShown, s.connectionHidden = s.connectionShown || opened.connectionShown, s.connectionHidden || opened.connectionHidden
	for _, connection := range opened.connections {
		if len(s.servers[connection]) < MaxServers {
			s.servers[connection] = append(s.servers[connection], opened.server)
		}
	}
}

// mayBeFUSEDevice reports whether a descriptor may be of /dev/fuse, in whichever namespace it was opened.
func mayBeFUSEDevice(link string) bool {
	link = strings.TrimSuffix(link, " (deleted)")
	return strings.HasPrefix(link, "/") && strings.HasSuffix(link, "/fuse")
}
