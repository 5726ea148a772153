// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Server is a process that has a FUSE connection open.
type Server struct {
	PID int
	// Command is the name that the process gives itself, at most 15 bytes of
	// any kind.
	Command string
	// State is that of its main thread, as in proc_pid_stat(5): 'T' is stopped.
	State byte
}

// Servers finds the processes that serve FUSE connections, by the number of the
// connection, which is the minor number of the device of its mounts. unseen says
// why a connection without a server here may have one all the same: the kernel
// does not tell (before 6.16), or a process does not show, or may not be looked
// into, or has very many descriptors. Where it is empty, only a server that has renamed its /dev/fuse is missed. Of one
// connection MaxServers are told of.
func Servers(ctx context.Context) (servers map[uint32][]Server, unseen string, err error) {
	sight, err := sys.ProcSight()
	if err != nil {
		return nil, "", err
	}
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return nil, "", err
	}
	s := search{servers: map[uint32][]Server{}}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		s.process(pid)
	}
	return s.servers, s.unseen(sight), nil
}

// MaxServers bounds how many processes are told of that serve one connection: each
// may have any number of children.
const MaxServers = 16

type search struct {
	servers map[uint32][]Server
	buf     []byte
	// told and silent: some open /dev/fuse told its connection, some did not. One
	// that nothing has been mounted with has none to tell.
	told, silent bool
	// refused counts the processes that may not be looked into, many those of whose descriptors only the first were looked at.
	refused, many int
	descriptors   sys.Descriptors
}

// unseen says why there may be servers that were not found.
func (s *search) unseen(sight sys.Sight) string {
	switch {
	case sight == sys.SeesNamespace:
		return "/proc shows no process outside of this PID namespace"
	case sight == sys.SeesOwn:
		return "/proc does not show the processes of others"
	case s.refused == 1:
		return "1 process may not be looked into"
	case s.refused > 1:
		return strconv.Itoa(s.refused) + " processes may not be looked into"
	case s.many > 0:
		return fmt.Sprintf("of %d processes that have very many descriptors not all were looked at", s.many)
	case s.silent && !s.told:
		return "the kernel does not tell, which takes Linux 6.16"
	}
	return ""
}

// opened lists what a process has open. For one that has just ended the kernel
// may answer that it is not permitted, so one that refuses is asked again.
func (s *search) opened(dir string) (fds []int, more bool, err error) {
	for range 2 {
		if fds, more, err = s.descriptors.Of(dir); !denied(err) {
			break
		}
	}
	return fds, more, err
}

func denied(err error) bool { return errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM) }

// process looks at what a process has open. One that ends meanwhile serves
// nothing. Process 1 serves nothing either: some sandboxes keep it even from a
// caller who has every privilege.
func (s *search) process(pid int) {
	dir := strconv.Itoa(pid)
	fds, more, err := s.opened(dir)
	if more {
		s.many++
	}
	if denied(err) && (pid != 1 || !sys.LooksAnywhere()) {
		s.refused++
	}
	if err != nil {
		return
	}
	found := map[uint32]bool{}
	for _, fd := range fds {
		number := strconv.Itoa(fd)
		link, err := sys.ReadlinkProc(dir + "/fd/" + number)
		if err != nil || !isDevice(link) {
			continue
		}
		s.buf, err = sys.ReadProcHead(dir+"/fdinfo/"+number, s.buf)
		if err != nil {
			continue
		}
		connection, ok := parseFdinfo(s.buf)
		s.told, s.silent = s.told || ok, s.silent || !ok
		if ok && !found[connection] && len(s.servers[connection]) < MaxServers {
			found[connection] = true
			s.add(connection, pid)
		}
	}
}

// isDevice tells whether what a descriptor leads to may be /dev/fuse, as seen
// from whatever namespace it was opened in.
func isDevice(link string) bool {
	link = strings.TrimSuffix(link, " (deleted)")
	return strings.HasPrefix(link, "/") && strings.HasSuffix(link, "/fuse")
}

// parseFdinfo finds the number of the connection.
func parseFdinfo(text []byte) (connection uint32, ok bool) {
	for line := range bytes.Lines(text) {
		if value, found := bytes.CutPrefix(line, []byte("fuse_connection:")); found {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}

func (s *search) add(connection uint32, pid int) {
	text, err := sys.ReadProcHead(strconv.Itoa(pid)+"/stat", nil)
	if err != nil {
		return
	}
	server, err := parseStat(text)
	if err != nil {
		return
	}
	server.PID = pid
	s.servers[connection] = append(s.servers[connection], server)
}

var errStat = errors.New("line of /proc/PID/stat not understood")

// parseStat reads the name and the state. The name may have anything in it, so
// that only the last bracket ends it.
func parseStat(text []byte) (Server, error) {
	start, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if start < 0 || end < start || len(text) < end+3 || text[end+1] != ' ' {
		return Server{}, errStat
	}
	return Server{Command: string(text[start+1 : end]), State: text[end+2]}, nil
}
