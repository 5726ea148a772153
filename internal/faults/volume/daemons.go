// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

// daemons are the processes that serve FUSE connections, by the number of the connection.
type daemons struct {
	servers      map[uint32][]fuse.Server
	unseenReason string // why there may be others; empty: these are all
}

// knownDaemonsTime is for how long the daemons of the same connections are not searched again. The search reads descriptors of all processes of
// the node, of which an attacker may have many, and every look at the node waits for it while a volume hangs.
const knownDaemonsTime = 20 * time.Second

// daemonCache has the daemons that the last search has found. Several goroutines use it.
type daemonCache struct {
	mu    sync.Mutex
	found daemons
	at    time.Time
	asked map[brokenMount]bool // for which mounts it was
}

// brokenMount is a broken volume whose daemon is searched for: the number of a connection alone may be that of another one by now.
type brokenMount struct {
	device device
	unique uint64
	state  probe.State
}

// get returns the daemons of connections, of a search that was made for all of these mounts a short time ago, or of a new one.
func (c *daemonCache) get(ctx context.Context, mounts []brokenMount) (daemons, error) {
	c.mu.Lock()
	found, known := c.found, time.Since(c.at) < knownDaemonsTime && !slices.ContainsFunc(mounts, func(m brokenMount) bool { return !c.asked[m] })
	c.mu.Unlock()
	if known {
		return found, nil
	}
	servers, unseen, err := fuse.Servers(ctx)
	if err != nil {
		return daemons{}, err
	}
	asked := map[brokenMount]bool{}
	for _, m := range mounts {
		asked[m] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found, c.at, c.asked = daemons{servers, unseen}, time.Now(), asked
	return c.found, nil
}

// addDaemons adds to the broken volumes what is known of their daemons, for people.
func (i *Inspector) addDaemons(ctx context.Context, volumes []*Health) error {
	var broken []brokenMount
	for _, v := range volumes {
		if v.Verdict.Code != "" && (v.Evidence.Mount.Major == 0 || v.Evidence.Staging != nil && v.Evidence.Staging.Mount.Major == 0) { // a process may serve it
			broken = append(broken, brokenMount{deviceOf(v.Evidence.Mount.Mount), v.Evidence.Mount.Unique, v.Evidence.Answer.State})
			if minor, ok := stagedConnection(v); ok {
				broken = append(broken, brokenMount{device{0, minor}, v.Evidence.Staging.Mount.Unique, v.Evidence.StagingAnswer.State})
			}
		}
	}
	if len(broken) == 0 {
		return ctx.Err()
	}
	found, err := i.daemonCache.get(ctx, broken)
	if err != nil {
		return err
	}
	over := map[uint32][]string{} // by connection of a staged mount
	for _, health := range volumes {
		if health.Verdict.Code == "" {
			continue
		}
		if health.Evidence.Mount.Major == 0 && strings.HasPrefix(health.Evidence.Mount.FSType, "fuse") {
			health.Surroundings.DaemonNotes, health.Surroundings.Daemon = found.describeServers(health.Evidence.Mount.Minor)
		}
		if minor, ok := stagedConnection(health); ok {
			if _, known := over[minor]; !known {
				over[minor] = i.describeNonempty(ctx, found.servers[minor])
			}
			health.Surroundings.DaemonNotes = append(health.Surroundings.DaemonNotes, over[minor]...)
		}
	}
	return ctx.Err()
}

// stagedConnection returns the connection of a staged mount that is alive and another than the volume's.
func stagedConnection(v *Health) (minor uint32, ok bool) {
	if v.Evidence.Staging == nil {
		return 0, false
	}
	m := v.Evidence.Staging.Mount
	return m.Minor, m.Major == 0 && m.Minor != v.Evidence.Mount.Minor && v.Evidence.StagingAnswer.State == probe.Alive
}

// serverStates are those in which a process does nothing, by the letter in its status, and the end of a sentence about it.
var serverStates = map[byte]struct {
	state fault.ProcessState
	text  string
}{
	'T': {fault.ProcessStopped, ", which is stopped"}, 't': {fault.ProcessStopped, ", which is stopped"},
	'D': {fault.ProcessBlocked, ", which is in an uninterruptible wait"}, 'Z': {fault.ProcessEnded, ", which is a zombie"},
}

// describeServers says which processes serve a connection, and which of them is the first; nil: none was found. It says that the daemon has ended only
// if no process could be missed.
func (d daemons) describeServers(minor uint32) (notes []string, first *fault.Process) {
	servers := d.servers[minor]
	switch {
	case len(servers) == 0 && d.unseenReason == "":
		return []string{fmt.Sprintf("no process serves FUSE connection %d: its daemon has ended", minor)}, nil
	case len(servers) == 0:
		return []string{fmt.Sprintf("it is not known which process serves FUSE connection %d, or whether one does: %s", minor, d.unseenReason)}, nil
	}
	for _, s := range servers {
		in := serverStates[s.State]
		notes = append(notes, fmt.Sprintf("FUSE connection %d is served by process %d (%s)%s", minor, s.PID, s.Command, in.text))
		if first == nil {
			first = &fault.Process{PID: s.PID, Command: s.Command, State: in.state}
		}
	}
	if len(servers) == fuse.MaxServers {
		notes = append(notes, fmt.Sprintf("more than these %d processes may serve it", len(servers)))
	}
	return notes, first
}

// maxServers bounds of how many processes that serve one connection the arguments are read.
const maxServers = 8

// describeNonempty says which daemons were started with an option that has them mount over a directory with something
// in it: that hides the data that containers have written there while the volume was not mounted. A command line is
// text of its process, and decides nothing. It is read in a process that can be lost: it lies in the memory of the daemon,
// which may be a file of a file system that hangs.
func (i *Inspector) describeNonempty(ctx context.Context, servers []fuse.Server) []string {
	var all []string
	for _, s := range servers[:min(len(servers), maxServers)] {
		var arguments []byte
		_ = i.questionRunner.Run(ctx, subprocess.Options{ // an error changes no decision: people alone read the arguments
			Job: CommandLinesJob.Name, Input: s.PID, Deadline: commandLinesDeadline, Each: func(text json.RawMessage) error { return json.Unmarshal(text, &arguments) },
			Owner: "arguments", Waits: []string{fmt.Sprintf("arguments of process %d", s.PID)},
		})
		for arg := range bytes.SplitSeq(arguments, []byte{0}) {
			if slices.Contains(strings.FieldsFunc(string(arg), func(r rune) bool { return r == ',' || r == '=' }), "nonempty") {
				all = append(all, fmt.Sprintf("process %d (%s) serves the staging path with the option \"nonempty\": it mounts over what is in the "+
					"directory already, and so hides that data was written to the node's own disk", s.PID, s.Command))
				break
			}
		}
	}
	return all
}
