// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fuse

import (
	"bytes"
	"context"
	"errors"
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
// connection, which is the minor number of the device of its mounts. known is
// whether the kernel tells (6.16) wherever it was asked; where it is not, a
// connection without a server here may have one. So may one whose server this
// process has no right to look into, or that has renamed its /dev/fuse.
func Servers(ctx context.Context) (servers map[uint32][]Server, known bool, err error) {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return nil, false, err
	}
	s := search{servers: map[uint32][]Server{}}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		s.process(pid)
	}
	return s.servers, s.told || !s.silent, nil
}

type search struct {
	servers map[uint32][]Server
	buf     []byte
	// told and silent: some open /dev/fuse told its connection, some did not. One
	// that nothing has been mounted with has none to tell.
	told, silent bool
}

// process looks at what a process has open. One that ends meanwhile, or that
// may not be looked into, serves nothing as far as this can tell.
func (s *search) process(pid int) {
	dir := strconv.Itoa(pid)
	fds, err := sys.ProcNumbers(dir + "/fd")
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
		if ok && !found[connection] {
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
