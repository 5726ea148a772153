// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// defaultSilence is for how long a connection must have been silent before it is aborted. A storage client is silent
// for a while when one of its servers fails over, and loses nothing: Ceph takes 20 s by default to see that a server is
// gone (osd_heartbeat_grace).
const defaultSilence = 30 * time.Second

const (
	// samplesPerSilence is how often the requests that wait are counted in that time.
	samplesPerSilence = 30
	// questionLead is how much longer than the silence a question is left unanswered: it must still wait when the
	// connection is aborted, has to be asked first, and the silence begins again whenever fewer requests wait.
	questionLead = 30 * time.Second
)

// idleMonitor watches whether a connection stays silent.
type idleMonitor struct {
	requiredSilence time.Duration
	waitingRequests func() (int, error) // how many requests wait for an answer
	startTime       time.Time
	questionWaits   chan struct{} // a question waits, and what was asked before it has been answered
	answerChannel   chan probe.Answer
	// These are about the question that waits; since is zero if none was seen to wait.
	questionAsked                    bool
	waitingSince                     time.Time
	firstCount, highestCount, counts int
	becameFewer                      string // how, the last time; empty if they never did
}

// watchConnection has a process ask the root of the mount once, and wait for longer than its connection must have been silent. The caller calls stop when
// it has done with the monitor.
func (i *Inspector) watchConnection(ctx context.Context, control *fuse.Control, found mountns.Mount, silence time.Duration) (monitor *idleMonitor, stop func()) {
	monitor = &idleMonitor{
		requiredSilence: silence, startTime: time.Now(), questionWaits: make(chan struct{}, 1), answerChannel: make(chan probe.Answer, 1),
		waitingRequests: func() (int, error) {
			c, err := control.Connection(found.Minor)
			if c.Dead {
				err = fuse.ErrNoConnection
			}
			return c.Waiting, err
		},
	}
	prober := &probe.Prober{Deadline: silence + questionLead, Runner: &i.questionRunner, Overdue: func() {
		select {
		case monitor.questionWaits <- struct{}{}:
		default: // one signal waits already, which is enough
		}
	}}
	asking, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		answers, err := prober.Ask(asking, []probe.Target{probeTarget("", found, "", false)})
		if len(answers) != 1 {
			answers = []probe.Answer{{State: probe.NotProbed, Evidence: []string{fmt.Sprint(err)}}}
		}
		monitor.answerChannel <- answers[0]
	}()
	return monitor, func() {
		cancel()
		<-ended
	}
}

// waitSilent returns once the connection has been silent for long enough. The result is Already if it is dead by now.
func (m *idleMonitor) waitSilent(ctx context.Context) (done fault.Applied, err error) {
	tick := time.NewTicker(max(m.requiredSilence/samplesPerSilence, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.Applied{}, fmt.Errorf("wait whether the connection stays silent for %s: %w", m.requiredSilence, context.Cause(ctx))
		case answer := <-m.answerChannel: // the question waits no more
			switch {
			case answer.State == probe.Disconnected:
				return fault.AlreadySo("was aborted already, or its daemon has ended: " + errorText(answer)), nil
			case answer.State == probe.Hung && !m.waitingSince.IsZero():
				return fault.Applied{}, m.notSilent(m.waitingSince, cmp.Or(m.becameFewer, "it answered, and another question waits"))
			case answer.State == probe.Hung || answer.State == probe.NotProbed:
				return fault.Applied{}, fmt.Errorf("%w: could not find out whether the connection is silent: %q", ErrRefused, answer.Evidence)
			}
			return fault.Applied{}, m.notSilent(time.Now(), "it answered: "+describeAnswer(answer))
		case <-m.questionWaits:
			m.questionAsked, m.waitingSince, m.counts = true, time.Time{}, 0
			err = m.countRequests()
		case <-tick.C:
			err = m.countRequests()
		}
		if err != nil || m.counts > 0 && time.Since(m.waitingSince) >= m.requiredSilence {
			return fault.Applied{}, err
		}
	}
}

// countRequests counts the requests that wait, once a question does. They become fewer if one is answered, and if a
// process that asked is killed: the kernel takes back a request that the daemon has not read (request_wait_answer in
// fs/fuse/dev.c). Both look the same, so the silence begins again.
func (m *idleMonitor) countRequests() error {
	n, err := m.waitingRequests()
	switch {
	case err != nil:
		return err
	case !m.questionAsked || m.counts == 0 && n == 0: // what waits has not got to the connection yet
		return nil
	case n == 0: // the question itself waits no more
		return m.notSilent(time.Now(), fewer(m.firstCount, n))
	case m.counts == 0:
		m.waitingSince, m.firstCount, m.highestCount = time.Now(), n, n
	case n < m.firstCount:
		m.becameFewer = fewer(m.firstCount, n)
		m.waitingSince, m.firstCount, m.highestCount, m.counts = time.Now(), n, n, 0
	}
	m.highestCount = max(m.highestCount, n)
	m.counts++
	return nil
}

func fewer(before, now int) string {
	return fmt.Sprintf("%d requests waited, and %d do now: one was answered, or its process was killed", before, now)
}

// checkLastTime counts for the last time, directly before the connection is aborted. After an error it must not be.
func (m *idleMonitor) checkLastTime() error {
	began := m.waitingSince
	if err := m.countRequests(); err != nil {
		return err
	}
	if m.waitingSince != began {
		return m.notSilent(time.Now(), m.becameFewer)
	}
	if len(m.answerChannel)+len(m.questionWaits) > 0 {
		return m.notSilent(time.Now(), "it answered at the last moment")
	}
	return nil
}

func (m *idleMonitor) notSilent(at time.Time, how string) error {
	return fmt.Errorf("%w: the connection did not stay silent: after %s, %s", ErrRefused, at.Sub(m.startTime).Round(100*time.Millisecond), how)
}

func (m *idleMonitor) String() string {
	return fmt.Sprintf("one question was not answered for %s, and each of the %d times that they were counted, %d to %d requests waited",
		time.Since(m.waitingSince).Round(100*time.Millisecond), m.counts, m.firstCount, m.highestCount)
}

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

// addDaemons adds facts about their daemons to the broken volumes, for people.
func (i *Inspector) addDaemons(ctx context.Context, volumes []*Health) error {
	var broken []brokenMount
	for _, v := range volumes {
		if v.Verdict.Code != "" && (v.Evidence.Mount.Major == 0 || v.Evidence.Staging != nil && v.Evidence.Staging.Mount.Major == 0) { // a process may serve it
			broken = append(broken, brokenMount{deviceOf(v.Evidence.Mount.Mount), v.Evidence.Mount.Unique, v.Evidence.Answer.State})
			if minor, ok := stagedConnection(v); ok {
				broken = append(broken, brokenMount{device{0, minor}, v.Evidence.Staging.Mount.Unique, v.Evidence.Expected.StagingRoot.State})
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
	return m.Minor, m.Major == 0 && m.Minor != v.Evidence.Mount.Minor && v.Evidence.Expected.StagingRoot.State == probe.Alive
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

// CommandLinesJob reads the arguments of a process that serves a file system. Main programs, and tests, hand it to
// subprocess.Main.
var CommandLinesJob = subprocess.Job{Name: "process-arguments", Run: runCommandLines}

// commandLinesDeadline is how long the arguments of processes may take to read.
const commandLinesDeadline = time.Second

// runCommandLines is the job.
func runCommandLines(_ context.Context, in []byte, emit func(v any) error) error {
	var pid int
	if err := json.Unmarshal(in, &pid); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	text, err := sys.ReadProcHead(strconv.Itoa(pid)+"/cmdline", nil)
	if err != nil {
		return err
	}
	return emit(text)
}
