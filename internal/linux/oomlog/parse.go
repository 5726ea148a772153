// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package oomlog

import (
	"strconv"
	"strings"
	"time"
)

// recordParser takes the records of the log one after the other.
type recordParser struct {
	bootTime time.Time // when the machine was started
	kills    []Kill

	victim      Kill   // the process that the kernel is about to kill; PID is 0 if the kernel named no process
	killedGroup string // the control group all of whose processes are about to be killed
}

// addRecord takes one record.
func (p *recordParser) addRecord(record string) {
	at, message, ok := parseRecord(record)
	if !ok {
		return
	}
	switch {
	case strings.HasPrefix(message, "oom-kill:"): // 5.0
		p.victim, p.killedGroup = parseVictim(message), ""
	case strings.HasPrefix(message, "Task in "): // before 5.0; it names no process, but the next line does
		p.victim, p.killedGroup = Kill{}, ""
		const between = " killed as a result of limit of "
		if strings.Count(message, between) == 1 {
			p.victim.Cgroup, p.victim.Limit, _ = strings.Cut(strings.TrimPrefix(message, "Task in "), between)
		}
	case strings.HasPrefix(message, "Tasks in "): // 4.19, memory.oom.group
		p.killedGroup, _ = strings.CutSuffix(strings.TrimPrefix(message, "Tasks in "), " are going to be killed due to memory.oom.group set")
	}
	pid, name, node, ok := parseKill(message)
	if !ok {
		return
	}
	// A process was killed. The line before may have said more about it.
	kill := Kill{Time: p.bootTime.Add(at), PID: pid, Name: name, Node: node}
	switch {
	case p.victim.PID == pid || p.victim.PID == 0 && p.killedGroup == "":
		kill.Cgroup, kill.Limit = p.victim.Cgroup, p.victim.Limit
		p.victim = Kill{PID: -1, Limit: kill.Limit} // the rest was about this one
	case p.killedGroup != "":
		kill.Cgroup, kill.Limit = p.killedGroup, p.victim.Limit
	}
	if len(p.kills) == maxKills {
		p.kills = append(p.kills[:0], p.kills[1:]...)
	}
	p.kills = append(p.kills, kill)
}

// parseRecord takes "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];MESSAGE\n KEY=VALUE\n..." apart. ok is false if the
// text is no record, or a record of a process.
func parseRecord(record string) (at time.Duration, message string, ok bool) {
	prefix, rest, found := strings.Cut(record, ";")
	fields := strings.SplitN(prefix, ",", 5)
	if !found || len(fields) < 4 {
		return 0, "", false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil || priority>>3 != 0 { // the facility; 0 is the kernel, which gives processes another
		return 0, "", false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 53)
	if err != nil || micros < 0 {
		return 0, "", false
	}
	message, _, _ = strings.Cut(rest, "\n")
	return time.Duration(micros) * time.Microsecond, unescapeHex(message), true
}

// unescapeHex turns \xNN back into bytes: the log has everything in that form that cannot be printed, and the
// backslash.
func unescapeHex(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var text strings.Builder
	for {
		before, after, found := strings.Cut(s, `\x`)
		text.WriteString(before)
		if !found {
			return text.String()
		}
		if len(after) < 2 {
			text.WriteString(`\x` + after)
			return text.String()
		}
		if n, err := strconv.ParseUint(after[:2], 16, 8); err == nil {
			text.WriteByte(byte(n))
		} else {
			text.WriteString(`\x` + after[:2])
		}
		s = after[2:]
	}
}

// parseVictim reads "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=NAME,mems_allowed=0,oom_memcg=PATH,
// task_memcg=PATH,task=NAME,pid=1,uid=0". Names may have all of this in them, so paths are taken only where each key is
// there once; the number is taken from the end, which the kernel wrote.
func parseVictim(message string) Kill {
	var kill Kill
	head, _, found := splitLast(message, ",uid=")
	if !found {
		return Kill{PID: -1}
	}
	head, number, found := splitLast(head, ",pid=")
	pid, err := strconv.Atoi(number)
	if !found || err != nil || pid <= 0 {
		return Kill{PID: -1}
	}
	kill.PID = pid
	for _, key := range []string{",oom_memcg=", ",task_memcg=", ",task="} {
		if n := strings.Count(message, key); n > 1 || n == 0 && key != ",oom_memcg=" {
			return kill
		}
	}
	head, _, _ = strings.Cut(head, ",task=")
	head, kill.Cgroup, _ = strings.Cut(head, ",task_memcg=")
	_, kill.Limit, _ = strings.Cut(head, ",oom_memcg=")
	return kill
}

// parseKill reads "Memory cgroup out of memory: Killed process 12 (name) total-vm:...", "Out of memory: Killed
// process", "Out of memory (oom_kill_allocating_task): Killed process", and "Killed process" as kernels before 5.0 have
// it. A name with brackets in it ends at the last bracket that a text of the kernel follows.
func parseKill(message string) (pid int, name string, node, ok bool) {
	head, rest, found := strings.Cut(message, "Killed process ")
	node = strings.HasPrefix(head, "Out of memory") && strings.HasSuffix(head, ": ")
	if !found || head != "" && head != "Memory cgroup out of memory: " && !node {
		return 0, "", false, false
	}
	number, rest, _ := strings.Cut(rest, " (")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 0 {
		return 0, "", false, false
	}
	name, _, found = splitLast(rest, ") total-vm:")
	if !found {
		name, _, found = splitLast(rest, "), UID ") // some before 5.0
	}
	return pid, name, node, found
}

func splitLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
