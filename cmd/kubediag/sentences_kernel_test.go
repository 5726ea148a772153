// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// never matches words that no sentence may have: inventions, names of states, unknown times, wrong plurals.
var never = []string{
	"mnt:[0]", "0001-01-01", "Unasked", ": Denied", " 1 processes ", " 1 mounts ", "namespace  0,", "nothing broken.",
	"of process 0", "<nil>", "%!",
}

// sentence is a line that the program may print, and when it is true. said has the matches of the groups of the pattern.
type sentence struct {
	pattern *regexp.Regexp
	holds   func(s *scenery, c caller, said []string) bool
}

func line(pattern string, holds func(s *scenery, c caller, said []string) bool) sentence {
	return sentence{regexp.MustCompile("^(?:" + pattern + `)\.?$`), holds}
}

func always(*scenery, caller, []string) bool { return true }

func whoSeesAll(_ *scenery, c caller, _ []string) bool { return c.everything() }

func whoDoesNot(_ *scenery, c caller, _ []string) bool { return !c.everything() && c.proc != "none" }

func withoutProc(_ *scenery, c caller, _ []string) bool { return c.proc == "none" }

// rights says whether it is true why processes are not seen.
func rights(_ *scenery, c caller, said []string) bool {
	switch why := said[1]; {
	case strings.HasPrefix(why, "processes outside of this PID namespace"), strings.HasPrefix(why, "/proc shows no process outside"),
		strings.HasPrefix(why, "no process that /proc shows is a kubelet"):
		return !c.all && c.proc != "none"
	case strings.Contains(why, "user 65534"):
		return c.uid == 65534
	case strings.Contains(why, "root of a user namespace"):
		return c.userns
	case strings.HasSuffix(why, "may not be looked into"):
		return !c.sees && c.proc != "none"
	}
	since, ok := strings.CutPrefix(said[1], "the kernel does not name the connection of a descriptor, which needs Linux ")
	return ok && before(since)
}

// before says whether the running kernel is older than a version.
func before(kernel string) bool {
	var major, minor, thenMajor, thenMinor int
	_, own := fmt.Sscanf(sys.Release(), "%d.%d", &major, &minor)
	_, then := fmt.Sscanf(kernel, "%d.%d", &thenMajor, &thenMinor)
	return own == nil && then == nil && (major < thenMajor || major == thenMajor && minor < thenMinor)
}

// lacks says whether the kernel is too old for a feature that is said to be missing.
func lacks(_ *scenery, _ caller, said []string) bool {
	return slices.ContainsFunc(sys.Features(), func(f *sys.Feature) bool {
		return f.Name == said[1] && f.Without == said[2] && before(f.Kernel)
	})
}

const bounds = `(?:descriptors of \d+ processes that have very many open|the end of the mount tables of \d+ mount namespaces: .*|` +
	`\d+ mounts? in \d+ mount namespaces? that have more .*)`

// tooMany is said where others of the machine have more than is looked at.
var tooMany = regexp.MustCompile(bounds)

const remedy = `run it as root in the host's PID namespace(?: \(in a pod: hostPID: true\))?`

// sentences are all that scan, probe, holders and features may print. Root is written ROOT.
var sentences = []sentence{
	// The server of a FUSE connection.
	line(`(?:  why  )? *no process serves FUSE connection (\d+): its daemon has ended`, func(s *scenery, c caller, said []string) bool {
		return c.everything() && said[1] == s.dead.minor
	}),
	line(` *FUSE connection (\d+) is served by process (\d+) \([^)]*\), which is stopped`, func(s *scenery, c caller, said []string) bool {
		return c.everything() && said[1] == s.stopped.minor && said[2] == fmt.Sprint(s.stopped.PID)
	}),
	line(` *it is not known which process serves FUSE connection \d+, or whether one does: of \d+ processes that have very many descriptors not all were looked at`, always),
	line(` *it is not known which process serves FUSE connection \d+, or whether one does: (.*)`, rights),
	// The faults, and their proofs.
	line(`(?:\d\. )?(StaleSubPath|DisconnectedFUSE|HungMount|HeldDevice) \(critical\): .*`, func(_ *scenery, c caller, said []string) bool {
		return said[1] != "HeldDevice" || c.everything()
	}),
	line(`  volume     (\S+)`, func(_ *scenery, c caller, said []string) bool {
		return said[1] != "live" && (said[1] != "pv-1" || c.everything())
	}),
	line(`  pod        uid 5f0e5d0c-\S+ \(its name is not known\)`, always),
	line(`  container  app`, always),
	line(`  device     7:\d+`, whoSeesAll),
	line(`  mount      ROOT/\S+(?:/mount|/0|/pv-1)(?:, (?:tmpfs|fuse), device \d+:\d+, root .*)?`, always),
	line(`  holder     process (\d+) \(.*\)`, func(s *scenery, c caller, said []string) bool {
		return c.everything() && said[1] == fmt.Sprint(s.holder.PID)
	}),
	line(`  why        the root of the mount is deleted: its link count is 0`, always),
	line(` *the pod's spec is not known; by its path it is for volumeMounts\[0\] of container "app", from volume "configmap"`, always),
	line(` *source on the host: "ROOT/.*//deleted"`, always),
	line(` *device \d+:\d+, inode \d+, link count 0`, always),
	line(` *mountinfo: .*`, always),
	line(`  why        the connection to the daemon of the file system is gone: transport endpoint is not connected`, always),
	line(`  why        the file system has not answered for \d+(\.\d)?s`, always),
	line(` *stat of the mount's root: transport endpoint is not connected`, always),
	line(` *stat of the mount's root: no answer within [\d.]+s`, always),
	line(` *\d+ requests? waits? unanswered`, always),
	line(` *nothing can take its place: the volume is unknown: read record "ROOT/.*vol_data.json": no such file or directory`, always),
	line(` *no record: read record "ROOT/.*vol_data.json": no such file or directory`, always),
	line(` *\d+ copies of it are left alone: they are in containers of other pods, such as the driver's, in services of the node, or in mount namespaces that workloads made`, whoSeesAll),
	line(` *a trial bind was refused: no such file or directory`, func(_ *scenery, c caller, _ []string) bool { return c.sees }),
	line(` *a place for a trial bind: .*operation not permitted`, func(_ *scenery, c caller, _ []string) bool { return !c.sees }),
	line(` *no trial bind could be made: .*`, func(_ *scenery, c caller, _ []string) bool { return !c.sees }),
	line(` *(?:the kernel's mark: deleted|its link count is 0)`, always),
	line(`  (?:note)? *statfs of the mount's root: function not implemented`, always),
	line(`  (?:repair|runbook|plan|hurts|heal|prevention) .*`, always),
	line(`  path       ROOT/.*`, always),
	line(`Alive`, func(_ *scenery, c caller, _ []string) bool { return c.sees }),
	line(`Alive, but whether a container could be started with it is not known`, func(_ *scenery, c caller, _ []string) bool { return !c.sees }),
	line(`Took [\d.]+ m?s`, always),
	// A machine that is busy.
	line(`kubediag: probe: "ROOT/.*/(?:live|dead|stopped)/mount": .*that is too short for a verdict`, always),
	line(`Not judged: \d+ more places?: \S*kubediag scan .*-v`, always),
	line(`Not judged: volume "stopped" of pod "\S+" at "ROOT/.*": it could not be asked.*`, always),
	// The device.
	line(`  why        the kernel refuses to open device /dev/loop\d+ \(7:\d+\) exclusively: it is busy`, whoSeesAll),
	line(` *a file system of type ext4 is alive on it: /sys/fs/ext4/loop\d+`, always),
	line(` *looked at: \d+ mounts in \d+ mount namespaces \((?:kernel|procfs)\)(?:, \d+ process(?:es)? may not be looked into)?`, whoSeesAll),
	line(` *mount \d+ of "/" at "ROOT/.*/pv-1" in mount namespace mnt:\[\d+\]`, whoSeesAll),
	line(`kubediag: bundle: .*`, withoutProc),
	line(` *kept alive by process (\d+)`, func(s *scenery, _ caller, said []string) bool { return said[1] == fmt.Sprint(s.holder.PID) }),
	line(` *the same directory on the host: "ROOT/.*/pv-1", volume "pv-1"`, whoSeesAll),
	line(` *(?:it can be unmounted there: |why  *)it is a copy of the kubelet's former mount at "ROOT/.*/pv-1"; that file system is no longer mounted in the kubelet's namespace; that namespace began as a private copy of the host's; no unmount spreads from there`, whoSeesAll),
	line(`/dev/loop\d+ \(7:\d+, loop, ext4\) is held. It can be released by unmounting what is named here`, whoSeesAll),
	line(`/dev/loop\d+ \(7:\d+, loop, ext4\) is held. The mounts named here can be unmounted, and others that were not seen may hold it as well`,
		func(_ *scenery, c caller, _ []string) bool { return c.everything() && c.limited }),
	line(`/dev/loop\d+ \(7:\d+, loop, ext4\) is held, and what holds it cannot be seen`, whoDoesNot),
	line(`/dev/loop\d+ \(7:\d+, loop, ext4\) is mounted in a mount namespace that may not be looked into: it is not known whether it is held or in normal use`, whoDoesNot),
	line(`  To release it:`, whoSeesAll),
	line(`    \S*kubediag release .*kube let .* loop\d+`, whoSeesAll),
	line(`  stays      the mount at "ROOT/.*" in mount namespace of process (\d+) stays: its mount table cannot be read: enter mount namespace of process \d+: (?:permission denied|operation not permitted)`, whoDoesNot),
	line(`    why        its mount table cannot be read: enter mount namespace of process \d+: (?:permission denied|operation not permitted)`, whoDoesNot),
	line(`  mount ROOT/.*/pv-1`, always),
	line(`    namespace  \d+`, whoSeesAll),
	line(`    namespace  its number may not be read`, whoDoesNot),
	line(`    process    (\d+) \(.*\)`, func(s *scenery, _ caller, said []string) bool { return said[1] == fmt.Sprint(s.holder.PID) }),
	line(`    on host    ROOT/.*/pv-1`, whoSeesAll),
	line(`    detail     what keeps its namespace alive was not found: .*, or a process that may not be looked into or does not show here`, whoDoesNot),
	line(`  What was found does not explain that it is busy. Any of these may hold it unseen:`, whoDoesNot),
	line(`    - a process outside of this PID namespace, which /proc does not show`, func(_ *scenery, c caller, _ []string) bool { return !c.all }),
	line(`    - (?:a descriptor on its way|a file or a mount that the kernel|an overlay made of|a mount outside the root|a mount namespace that only|one of \d+ process).*`, whoDoesNot),
	line(`(\d+) devices? mounted only elsewhere, (\d+) held. Looked at .*`, func(_ *scenery, c caller, said []string) bool {
		return c.proc != "none" && (said[2] != "0") == c.everything()
	}),
	line(`No device was seen that is mounted somewhere, but not where the kubelet runs. Looked at .*`, whoDoesNot),
	line(`Looked at \d+ mounts? in \d+ mount namespaces? .*`, always),
	// Containers that others run on the machine have copies of the mounts of the scenery.
	line(` +it is a copy of volume "(?:dead|stopped)" of pod \S+, in mount namespace mnt:\[\d+\]: device 0:\d+, root "/", at "ROOT/.*"`, always),
	line(` +it is left alone: the owner of that mount namespace is unknown: the container runtime does not answer`, always),
	line(`Names of pods are missing: logs: resolve log directory "(/var/log/pods)": .*: no such file or directory`, func(_ *scenery, _ caller, said []string) bool {
		_, err := os.Stat(said[1])
		return errors.Is(err, os.ErrNotExist)
	}),
	// A process on the machine has made more than is looked at.
	line(`Not judged: not looked at: `+bounds, always),
	line(`Not looked at: `+bounds+`: there are more of them than are looked at`, always),
	// Things that were not looked at.
	line(`Not looked at: (\d+ process(?:es)?, and what only they have mounted: .*): `+remedy, rights),
	line(`Not looked at: (processes outside of this PID namespace, and what they have mounted: /proc does not show them): `+remedy, rights),
	// The kubelet of the scenery writes no records of its volumes, which counts while a pod runs.
	line(`Not looked at: volumes that are not there: find processes of pod "5f0e5d0c-\S+": /proc does not show all processes, and the container runtime `+
		`does not answer: .*`, func(_ *scenery, c caller, _ []string) bool { return !c.all && c.proc != "none" }),
	line(`Note: no kubelet that serves "ROOT" was seen: .*`, func(_ *scenery, c caller, _ []string) bool { return c.all }),
	line(`kubediag: (?:scan|holders): not everything was looked at, so there may be faults that were not seen: `+remedy, whoDoesNot),
	line(`kubediag: probe: "ROOT/.*/live/mount": it answers, but could not be bound in a trial, so that it may be a DeletedVolumeSource: `+remedy,
		func(_ *scenery, c caller, _ []string) bool { return !c.sees }),
	line(`kubediag: (?:scan|show|recover|release|diagnose|holders|probe|demo).*no process file system is mounted at /proc.*`, withoutProc),
	line(`Not judged: volume "(?:dead|stopped)" of pod \S+ at "ROOT/.*": (?:process \d+ is in that mount namespace, and may not be looked into|`+
		`no process was seen in that mount namespace, and not all processes may be looked into)`, whoDoesNot),
	line(` *not known whether this kubelet renews subPath binds: there is no kubelet process`, always),
	// The verdict and the table.
	line(`[✗x] \S+: (\d+) faults in (\d+) places( in what was looked at)?\.(?: \d places? could not be judged\.)? \d pods? .*`, func(_ *scenery, c caller, said []string) bool {
		return (said[1] <= "3" || c.everything()) && said[1] == said[2] && (said[3] == "") == (c.everything() && !c.limited)
	}),
	line(`(\d+) faults: HungMount pod 5f0e5d0c-\S+; .*`, func(_ *scenery, c caller, said []string) bool {
		return said[1] <= "3" || c.everything()
	}),
	line(`  (?:hurt now|at next start): +pod 5f0e5d0c-\S+`, always),
	line(`#  FAULT +HURTS +HEAL +POD OR DEVICE +VOLUME|Next:|By hand, on this node:`, always),
	line(`\d  (?:HungMount|DisconnectedFUSE) +now +person +pod 5f0e5d0c-\S+ +(stopped|dead)`, always),
	line(`\d  StaleSubPath +next start +safe +pod 5f0e5d0c-\S+ +configmap`, always),
	line(`\d  HeldDevice +detach +safe +/dev/loop\d+ \(7:\d+\) +pv-1`, whoSeesAll),
	line(`     (?:app: the file it is bound to was deleted or replaced|the connection to its FUSE daemon is gone|it does not answer)(?:; left alone: .*)?`, always),
	line(`     it does not answer; its daemon \S+\[(\d+)\] is stopped`, func(s *scenery, _ caller, said []string) bool {
		return said[1] == fmt.Sprint(s.stopped.PID)
	}),
	line(`     held by \S+\[(\d+)\], which has a private copy of the host's mounts`, func(s *scenery, c caller, said []string) bool {
		return c.everything() && said[1] == fmt.Sprint(s.holder.PID)
	}),
	line(`  (?:kill -CONT|ps -o pid,stat,wchan:32,args -p) (\d+) +# .*`, func(s *scenery, c caller, said []string) bool {
		return c.everything() && said[1] == fmt.Sprint(s.stopped.PID)
	}),
	line(`  sh -c 'grep -vx 0 /sys/fs/fuse/connections/\d+/waiting && echo 1 >/sys/fs/fuse/connections/(\d+)/abort'(?: +# .*)?`, func(s *scenery, _ caller, said []string) bool {
		return said[1] == s.stopped.minor
	}),
	line(`  # (?:number \d: )?(?:removes|evidence|cause|lets|shows|ends|asks)\b.*`, always),
	line(`  umount -- .*/configmap/app/0'(?: +# .*)?`, always),
	line(`  \S*kubediag (?:show 1|explain \S+)(?: +# .*)?`, always),
	line(`\S+, (?:OLD: )?scan of .*, \S+s ago, and looked at again now. To look again: \S*kubediag scan \S*--kubelet-root=.*`, always),
	// The volumes are mounts, and the subPath bind is one.
	line(`Looked at 1 pod \(no specs\), 1 subPath bind, 3 volumes and \d+ mounts in [\d.]+ m?s\. `+
		`4 mounts below the kubelet's root: 4 wanted, 0 left over, 0 unknown`, always),
	line(`Unknown whether this kubelet renews stale binds \(kubelets from 1.19 do\)`, always),
	line(`Without the specs of pods \(--pods\), a source that is missing or was moved away is not seen, nor a hostPath on a disk that fails, or one that no container has yet: `+
		`kubectl get pods -A -o json > pods\.json; \S+ scan .*--kubelet-root=.* --pods=pods\.json`, always),
	line(`no kubelet process was used, root "ROOT", mount namespace \d+`, always),
	// The repairs that would be made, and those that would not.
	line(`4\. HeldDevice /dev/loop\d+ at ROOT/.*/pv-1`, whoSeesAll),
	line(`   would unmount ROOT/.*/pv-1 \(mount \d+ of mount namespace \d+\)`, whoSeesAll),
	line(`     safe: in the mount namespace of process (\d+) \(.*\): it is a copy of the kubelet's former mount at "ROOT/.*/pv-1"; `+
		`that file system is no longer mounted in the kubelet's namespace; that namespace began as a private copy of the host's; no unmount spreads from there`,
		func(s *scenery, c caller, said []string) bool {
			return c.everything() && said[1] == fmt.Sprint(s.holder.PID)
		}),
	line(`     lost: nothing`, whoSeesAll),
	line(`1\. HungMount pod \S+, volume stopped: refused because kubediag does nothing by itself: the daemon or the server must answer again. Next: \S+ show 1`, whoSeesAll),
	line(`2\. DisconnectedFUSE pod \S+, volume dead: refused because kubediag does nothing: .* Next: \S+ show 2`, whoSeesAll),
	line(`3\. StaleSubPath pod \S+, container app, volume configmap: refused because its pod is not known: neither --pods, the kubelet nor the container runtime `+
		`knows it. Next: kubectl get pods -A -o json > pods\.json; \S+ recover .*--kubelet-root=.* --pods=pods\.json 3`, whoSeesAll),
	line(` +\S*kubediag (?:recover|release|diagnose) .*'--kubelet-root=ROOT'.*`, whoSeesAll),
	line(`Succeeded      auto-(?:collector|diagnoser|recover), [0-9.]+ m?s`, whoSeesAll),
	line(`(?:DisconnectedFUSE|HungMount|HeldDevice) \(present\)`, whoSeesAll),
	line(`No action repairs (?:DisconnectedFUSE|HungMount) now\. See \S+ explain \S+`, whoSeesAll),
	line(`Planned: 3 faults found, 1 action planned; nothing would be lost`, whoSeesAll),
	line(`Nothing was changed\. To carry out the plan:`, whoSeesAll),
	line(`Not looked at: the subPaths of 1 pod: neither --pods, the kubelet nor the container runtime knows them: kubectl get pods .*`, whoSeesAll),
	line(`kubediag: (?:recover|release|diagnose): (?:it changes mounts, and has to see all of them to prove what it did|it has to see the mounts of all processes): `+remedy, whoDoesNot),
	// The features.
	line(`Linux \S+; kubediag is tested on 5\.10 and later`, always),
	line(`without ([^:]+): (.*[^.])`, lacks),
	line(`FEATURE .*|.* (?:yes|no)  +\d+\.\d+|FOR .*|mount (?:namespaces|identity) .*|unmount .*`, always),
	line(`.* failed  +\d+\.\d+`, func(_ *scenery, c caller, _ []string) bool { return !c.everything() || c.name != "root" }),
	line(`[a-zA-Z_/ ]+: .*(?:operation not permitted|permission denied)`, func(_ *scenery, c caller, _ []string) bool { return c.name != "root" }),
	line(`[a-zA-Z_/ ]+: .*no process file system is mounted at /proc.*`, withoutProc),
	line(`live swap  +(kernel|propagation|none|unknown)  +.*`, func(_ *scenery, c caller, said []string) bool {
		return said[1] != "none" || c.sees
	}),
}

// ends returns the status with which a verb is to end for a caller; -1: that depends on the machine.
func (v verbCall) ends(c caller) int {
	switch sees := c.everything(); {
	case c.proc == "none":
		return v.blind
	case sees, v.args[0] == "probe" && c.sees:
		return v.full
	}
	return v.part
}

// check takes the output of the program apart.
func (s *scenery) check(t *testing.T, c caller, v verbCall, r *result) {
	t.Helper()
	if want := v.ends(c); want >= 0 && v.args[0] != "show" && r.status != want && !strings.Contains(r.errors, "too short for a verdict") {
		t.Errorf("%q: status %d, want %d\n%s", v.args, r.status, want, r)
	}
	if v.args[0] == "bundle" {
		r.out = "" // it is compressed, and TestABundleReachesTheSameFindings reads it
	}
	c.limited = tooMany.MatchString(r.out + r.errors)
	plain := len(v.args) == 1 && v.args[0] == "scan" // of the machine, which may have kubelets of others
	for _, text := range never {
		if !plain && strings.Contains(r.out+r.errors, text) {
			t.Errorf("%q: %q is said\n%s", v.args, text, r)
		}
	}
	switch v.args[0] {
	case "decode":
		if r.out != "hi\n" || r.errors != "" {
			t.Errorf("decode: %s", r)
		}
		return
	case "version", "help", "completion", "demo", "explain", "lint": // they say nothing of the node
		if r.errors == "" {
			return
		}
		r.out = ""
	}
	if plain {
		if c.everything() {
			return
		}
		r.out = ""
		if !strings.HasPrefix(r.errors, "kubediag: scan: ") || c.proc != "none" && !strings.Contains(r.errors, "run it as root in the host's PID namespace") {
			t.Errorf("scan: %s", r)
		}
		return
	}
	if v.args[0] == "show" && strings.HasPrefix(r.errors, "kubediag: show: ") && r.status == 2 && !c.everything() {
		return // no scan of this caller was kept, and none is possible
	}
	others := false // whether the lines are about a device that others have on this machine
	for _, said := range linesOf(strings.ReplaceAll(r.out+r.errors, s.Root, "ROOT")) {
		if device := deviceLine.FindStringSubmatch(said); device != nil {
			others = device[1] != s.device
		} else if !strings.HasPrefix(said, " ") {
			others = false
		}
		if !others {
			s.judge(t, c, v, said)
		}
	}
}

// deviceLine begins the text of holders about a device.
var deviceLine = regexp.MustCompile(`^(/dev/\S+) \(`)

func (s *scenery) judge(t *testing.T, c caller, v verbCall, said string) {
	t.Helper()
	text := strings.TrimPrefix(said, "! ")
	for _, one := range sentences {
		if groups := one.pattern.FindStringSubmatch(text); groups != nil {
			if !one.holds(s, c, groups) {
				t.Errorf("%s: %s: it is not true that %q", c.name, v.args[0], said)
			}
			return
		}
	}
	t.Errorf("%s: %s: nobody has checked whether it is true that %q", c.name, v.args[0], said)
}
