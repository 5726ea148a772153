// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
)

// conclude orders what was found, and adds who shares the fault.
func (l *look) conclude(ctx context.Context) error {
	users := l.users()
	for _, v := range l.survey.Volumes {
		slices.SortFunc(v.Copies, func(a, b *Copy) int {
			return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Container, b.Container),
				cmp.Compare(a.Namespace.Inode, b.Namespace.Inode), cmp.Compare(a.Point, b.Point), cmp.Compare(a.ID, b.ID))
		})
		if v.Code == "" {
			continue
		}
		if !v.location.split { // the node's own disk is everybody's
			v.share(users[deviceOf(v.Mount.Mount)])
		}
	}
	return ctx.Err()
}

// findFates adds what has become of the daemons, for people.
func (l *look) findFates(ctx context.Context) error {
	servers, unseen, err := l.servers(ctx)
	if err != nil {
		return err
	}
	over := map[uint32][]string{} // by connection: what is hidden
	arguments := func(pids []int) map[int][]byte { return l.arguments(ctx, pids) }
	for _, v := range l.survey.Volumes {
		if v.Code == "" {
			continue
		}
		if v.Mount.Major == 0 && strings.HasPrefix(v.Mount.FSType, "fuse") {
			v.DaemonNotes = append(v.DaemonNotes, fateOf(servers[v.Mount.Minor], v.Mount.Minor, unseen)...)
			v.Daemon = daemonOf(servers[v.Mount.Minor])
		}
		if v.Staging != nil && v.Staging.Mount.Major == 0 && v.Staging.Mount.Minor != v.Mount.Minor && v.Staging.Answer.State == probe.Alive {
			minor := v.Staging.Mount.Minor
			if _, known := over[minor]; !known {
				over[minor] = hidden(servers[minor], arguments)
			}
			v.DaemonNotes = append(v.DaemonNotes, over[minor]...)
		}
	}
	return ctx.Err()
}

// maxShares bounds how many pods are listed for each volume.
const maxShares = 100

// share notes the other pods of a file system.
func (v *Volume) share(users []fault.Pod) {
	for _, pod := range users {
		if pod.UID == v.Pod.UID {
			continue
		}
		if v.SharedWithCount++; len(v.SharedWith) < maxShares {
			v.SharedWith = append(v.SharedWith, pod)
		}
	}
}

// rank puts what the kubelet has bound before what containers have, and that before the rest.
func rank(c *Copy) int {
	switch {
	case c.onHost:
		return 0
	case c.Replaceable:
		return 1
	}
	return 2
}

// users lists the pods that have a mount of each broken file system, each once.
func (l *look) users() map[device][]fault.Pod {
	users := map[device][]fault.Pod{}
	for _, v := range l.survey.Volumes {
		if v.Code != "" && v.Mount.ID != 0 {
			users[deviceOf(v.Mount.Mount)] = nil
		}
	}
	for point, m := range l.at {
		place, ok := l.node.ParseVolume(point)
		_, broken := users[deviceOf(m)]
		if !ok || !broken {
			continue
		}
		pod := fault.Pod{UID: place.PodUID}
		if known := l.podOf(place.PodUID); known != nil {
			pod.Namespace, pod.Name = known.Namespace, known.Name
		} else {
			name := l.names[place.PodUID]
			pod.Namespace, pod.Name = name.Namespace, name.Name
		}
		if !slices.Contains(users[deviceOf(m)], pod) {
			users[deviceOf(m)] = append(users[deviceOf(m)], pod)
		}
	}
	for _, pods := range users {
		slices.SortFunc(pods, func(a, b fault.Pod) int { return cmp.Compare(a.UID, b.UID) })
	}
	return users
}

// servers finds the processes that serve FUSE connections, where a volume that has one is broken. unseen says why there may
// be others.
func (l *look) servers(ctx context.Context) (servers map[uint32][]fuse.Server, unseen string, err error) {
	for _, v := range l.survey.Volumes {
		if v.Code != "" && (v.Mount.Major == 0 || v.Staging != nil && v.Staging.Mount.Major == 0) {
			return fuse.Servers(ctx)
		}
	}
	return nil, "", nil
}

// fateOf says what is known of who serves a connection. That its daemon has ended is said only where no process could be
// missed.
func fateOf(servers []fuse.Server, minor uint32, unseen string) []string {
	switch {
	case len(servers) == 0 && unseen == "":
		return []string{fmt.Sprintf("no process serves FUSE connection %d any more: its daemon has ended", minor)}
	case len(servers) == 0:
		return []string{fmt.Sprintf("it is not known which process serves FUSE connection %d, or whether one does: %s", minor, unseen)}
	}
	var all []string
	for _, s := range servers {
		text := fmt.Sprintf("FUSE connection %d is served by process %d (%s)", minor, s.PID, s.Command)
		switch s.State {
		case 'T', 't':
			text += ", which is stopped"
		case 'D':
			text += ", which itself waits and cannot be interrupted"
		case 'Z':
			text += ", which has ended and was not waited for"
		}
		all = append(all, text)
	}
	if len(servers) == fuse.MaxServers {
		all = append(all, fmt.Sprintf("more than these %d processes may serve it", len(servers)))
	}
	return all
}

// daemonOf is the first of the processes that serve a connection.
func daemonOf(servers []fuse.Server) *fault.Process {
	if len(servers) == 0 {
		return nil
	}
	p := fault.Process{PID: servers[0].PID, Command: servers[0].Command}
	switch servers[0].State {
	case 'T', 't':
		p.State = fault.ProcessStopped
	case 'D':
		p.State = fault.ProcessBlocked
	case 'Z':
		p.State = fault.ProcessEnded
	}
	return &p
}

// maxServers bounds of how many processes that serve one connection the arguments are read.
const maxServers = 8

// hidden says where a daemon was told to mount over a directory that has something in it: that hides what containers
// have written there while the volume was not mounted. A command line is text of its process, and decides nothing.
func hidden(servers []fuse.Server, arguments func(pids []int) map[int][]byte) []string {
	var all []string
	var pids []int
	for _, s := range servers[:min(len(servers), maxServers)] {
		pids = append(pids, s.PID)
	}
	texts := arguments(pids)
	for _, s := range servers {
		text := texts[s.PID]
		for arg := range bytes.SplitSeq(text, []byte{0}) {
			if slices.Contains(strings.FieldsFunc(string(arg), func(r rune) bool { return r == ',' || r == '=' }), "nonempty") {
				all = append(all, fmt.Sprintf("process %d (%s) serves the staging path with the option \"nonempty\": it mounts over what is in the "+
					"directory already, and so hides that data was written to the node's own disk", s.PID, s.Command))
				break
			}
		}
	}
	return all
}
