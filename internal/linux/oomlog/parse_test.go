// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package oomlog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/growthtest"
)

// Lines as kernels print them: of 5.0 and later, and before.
const (
	victim = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/c," +
		"task=ceph-fuse,pid=7,uid=0"
	global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=a,mems_allowed=0,global_oom,task_memcg=/kubepods/podu/c,task=ceph-fuse,pid=7,uid=0"
	killed = "Memory cgroup out of memory: Killed process 7 (ceph-fuse) total-vm:143104kB, anon-rss:65024kB, file-rss:2816kB, shmem-rss:0kB, " +
		"UID:0 pgtables:184kB oom_score_adj:0"
	group  = "Tasks in /kubepods/podu are going to be killed due to memory.oom.group set"
	old    = "Task in /kubepods/podu/c killed as a result of limit of /kubepods/podu"
	oldEnd = "Killed process 7 (ceph-fuse) total-vm:143104kB, anon-rss:65024kB, file-rss:2816kB, shmem-rss:0kB"
)

// kill7 is the kill in most of the lines.
func kill7(change func(*Kill)) []Kill {
	k := Kill{Time: time.Unix(1, 500), PID: 7, Name: "ceph-fuse", Cgroup: "/kubepods/podu/c", Limit: "/kubepods/podu"}
	if change != nil {
		change(&k)
	}
	return []Kill{k}
}

// parsed reads messages of the kernel, which are said half a microsecond after one second.
func parsed(records ...string) []Kill {
	p := recordParser{bootTime: time.Unix(0, 500)}
	for _, r := range records {
		p.addRecord(r)
	}
	return p.kills
}

func ofKernel(messages ...string) []string {
	var records []string
	for i, m := range messages {
		records = append(records, fmt.Sprintf("6,%d,1000000,-;%s\n SUBSYSTEM=x\n", i, m))
	}
	return records
}

var cases = map[string]struct {
	messages []string
	want     []Kill
}{
	"by a limit": {[]string{victim, killed}, kill7(nil)},
	"of the node": {
		[]string{global, strings.Replace(killed, "Memory cgroup out", "Out", 1)},
		kill7(func(k *Kill) { k.Limit, k.Node = "", true }),
	},
	"allocating task": {
		[]string{strings.Replace(killed, "Memory cgroup out of memory", "Out of memory (oom_kill_allocating_task)", 1)},
		kill7(func(k *Kill) { k.Limit, k.Cgroup, k.Node = "", "", true }),
	},
	"before 5.0":              {[]string{old, "Memory cgroup out of memory: Kill process 7 (ceph-fuse) score 1 or sacrifice child", oldEnd}, kill7(nil)},
	"with a user, before 5.0": {[]string{old, strings.Replace(oldEnd, ") total", "), UID 0, total", 1)}, kill7(nil)},
	"the first line is overwritten": {
		[]string{killed}, kill7(func(k *Kill) { k.Limit, k.Cgroup = "", "" }),
	},
	"of another than was named": {
		[]string{strings.Replace(victim, "pid=7", "pid=8", 1), killed}, kill7(func(k *Kill) { k.Limit, k.Cgroup = "", "" }),
	},
	"named once only": {
		[]string{victim, killed, killed}, append(kill7(nil), kill7(func(k *Kill) { k.Limit, k.Cgroup = "", "" })...),
	},
	"a group": {
		[]string{victim, killed, group, strings.Replace(killed, "process 7", "process 9", 1)},
		append(kill7(nil), kill7(func(k *Kill) { k.PID, k.Cgroup = 9, "/kubepods/podu" })...),
	},
	"names that pretend": {
		[]string{
			strings.Replace(victim, "task=ceph-fuse", "task=a,pid=1,uid=0", 1),
			strings.Replace(killed, "(ceph-fuse)", "(a) total-vm:)", 1),
		},
		kill7(func(k *Kill) { k.Name = "a) total-vm:" }),
	},
	"a control group that pretends": {
		[]string{strings.Replace(victim, "cpuset=a", "cpuset=a,task_memcg=/kubepods/podv,task=b", 1), killed},
		kill7(func(k *Kill) { k.Limit, k.Cgroup = "", "" }),
	},
	"a name that pretends a group": {
		[]string{strings.Replace(victim, "task=ceph-fuse", "task=a,task=b", 1), strings.Replace(killed, "ceph-fuse", "a,task=b", 1)},
		kill7(func(k *Kill) { k.Limit, k.Cgroup, k.Name = "", "", "a,task=b" }),
	},
	"escaped": {
		[]string{
			strings.ReplaceAll(victim, "/kubepods/podu", `/kubepods-a\x5cx2db.slice/podu`), strings.Replace(killed, "ceph-fuse", `ceph\x0afuse`, 1),
		},
		kill7(func(k *Kill) {
			k.Cgroup, k.Limit, k.Name = `/kubepods-a\x2db.slice/podu/c`, `/kubepods-a\x2db.slice/podu`, "ceph\nfuse"
		}),
	},
	"only quoted":    {[]string{"systemd[1]: " + killed, "x Killed process 7 (a) total-vm:1kB"}, nil},
	"cut":            {[]string{victim[:60], killed[:50], "Killed process 7", "Killed process x (a) total-vm:", "Killed process -1 (a) total-vm:"}, nil},
	"something else": {[]string{"device eth0 entered promiscuous mode", ""}, nil},
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, parsed(ofKernel(c.messages...)...)); diff != "" {
				t.Errorf("kills (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyTheKernelIsBelieved(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]string{
		"a process":    "14,1,1000000,-;" + killed, // facility 1
		"systemd":      "30,1,1000000,-;" + killed,
		"no number":    "x,1,1000000,-;" + killed,
		"time missing": "6,1;" + killed,
		"time before":  "6,1,-5,-;" + killed,
		"no message":   "6,1,1000000,-",
		"second line":  "6,1,1000000,-;x\n" + killed,
	} {
		if got := parsed(record); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := parsed("6,1,1000000,c,caller=T1;" + killed); len(got) != 1 {
		t.Errorf("with another field: %+v", got)
	}
}

func TestNewestKillsAreKept(t *testing.T) {
	t.Parallel()
	var messages []string
	for i := range maxKills + 5 {
		messages = append(messages, strings.Replace(killed, "process 7", fmt.Sprintf("process %d", i+1), 1))
	}
	got := parsed(ofKernel(messages...)...)
	if len(got) != maxKills || got[maxKills-1].PID != maxKills+5 {
		t.Errorf("%d kills, the last of process %d", len(got), got[len(got)-1].PID)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range cases {
		f.Add(strings.Join(ofKernel(c.messages...), "\x00"))
	}
	f.Fuzz(func(t *testing.T, log string) {
		growthtest.Text(t, 1<<13, log+"\x00", func(text string) { parsed(strings.Split(text, "\x00")...) })
		growthtest.Text(t, 1<<13, log, func(text string) { parsed(text) })
		records := strings.Split(log, "\x00")
		for _, k := range parsed(records...) {
			switch {
			case k.PID <= 0 || k.Time.Before(time.Unix(0, 500)):
				t.Errorf("%+v", k)
			case k.Node && k.Limit != "" && !strings.Contains(log, "oom_memcg="):
				t.Errorf("a limit that nobody spoke of: %+v", k)
			}
			if !strings.Contains(unescapeHex(log), k.Cgroup) && !strings.Contains(log, `\x`) {
				t.Errorf("a control group that nobody spoke of: %q", k.Cgroup)
			}
		}
	})
}
