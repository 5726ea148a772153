// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

func TestAdvice(t *testing.T) {
	t.Parallel()
	pod, driver := Pod{Namespace: "shop", Name: "web-0", UID: "u"}, "cephfs.csi.ceph.com"
	for name, c := range map[string]struct {
		finding Finding
		caller  Caller
		impact  Impact
		heal    Heal
		summary string
		lines   []string
	}{
		"stale, and runs": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/p"}, Details: Details{Container: ContainerRuns, Repair: Replace}},
			Caller{}, ImpactNextStart, HealSafe, "the file it is bound to was deleted or replaced", []string{"kubediag recover shop/web-0", "umount -- /k/p"},
		},
		"stale, and down, in another namespace": {
			Finding{Code: StaleSubPath, Mount: Mount{Point: "/k/a b"}, Details: Details{Container: ContainerDown, Repair: Replace}},
			Caller{Automatic: true, Enter: 7}, ImpactNow, HealAutomatic, "the file it is bound to was deleted or replaced",
			[]string{"nsenter -t 7 -m umount -- '/k/a b'"},
		},
		"missing": {
			Finding{Code: MissingBindSource, Pod: pod, Details: Details{Container: ContainerDown}}, Caller{Automatic: true}, ImpactNow,
			HealPerson, "its source does not exist", []string{"kubectl -n shop get pod web-0 -o yaml"},
		},
		"disconnected": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Details: Details{Driver: driver}}, Caller{}, ImpactNow, HealDriver,
			"the connection to its FUSE daemon is gone; cephfs.csi.ceph.com has mounted nothing in its place",
			[]string{"kubectl -n shop delete pod web-0"},
		},
		"disconnected, and back": {
			Finding{Code: DisconnectedFUSE, Details: Details{Driver: driver, Repair: Replace}}, Caller{}, ImpactNow, HealSafe,
			"the connection to its FUSE daemon is gone; cephfs.csi.ceph.com has mounted the volume again", nil,
		},
		"of no driver": {Finding{Code: StaleFileHandle}, Caller{}, ImpactNow, HealPerson, "the server no longer knows its directory", nil},
		"answers with an error": {
			Finding{Code: VolumeIOError, Pod: pod, Details: Details{Driver: driver}}, Caller{Automatic: true}, ImpactNow, HealPerson,
			"its file system answers with an error", []string{"dmesg --level=emerg,alert,crit,err,warn"},
		},
		"hung": {
			Finding{
				Code: HungMount, Mount: Mount{Device: "0:41", FSType: "fuse.ceph"},
				Details: Details{Driver: driver, Daemon: &Process{PID: 21087, Command: "ceph-fuse", State: ProcessStopped}},
			},
			Caller{}, ImpactNow, HealPerson, "it does not answer; its daemon ceph-fuse[21087] is stopped",
			[]string{"kill -CONT 21087", "ps -o pid,stat,wchan:32,args -p 21087", "sh -c 'echo 1 >/sys/fs/fuse/connections/41/abort'"},
		},
		"held by a copy": {
			Finding{
				Code: HeldDevice, Mount: Mount{Point: "/host/k"},
				Details: Details{HeldBy: &Process{PID: 77, Command: "exporter"}, Device: "rbd3", Repair: Unmount},
			},
			Caller{Automatic: true, Flags: " --kubelet-root=/k"}, ImpactDetach, HealSafe,
			"held by exporter[77], which has a private copy of the host's mounts",
			[]string{"kubediag release --kubelet-root=/k rbd3", "nsenter -t 77 -m umount -- /host/k", "kubediag holders --kubelet-root=/k rbd3"},
		},
		"held by others": {
			Finding{Code: HeldDevice, Details: Details{Device: "rbd3"}}, Caller{}, ImpactDetach, HealPerson,
			"the device is still mounted elsewhere", []string{"kubediag holders rbd3"},
		},
		"left": {
			Finding{Code: OrphanedPodVolumes, Details: Details{Path: "/k/pods/u", Repair: RemoveDirectory}}, Caller{}, ImpactCleanup, HealSafe,
			"the pod is gone and its directory is left", []string{"find /k/pods/u -xdev -ls"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := Advise(c.finding, c.caller)
			var lines []string
			for _, command := range a.Commands {
				if lines = append(lines, command.Line); command.Purpose == "" || command.Effect == "" {
					t.Errorf("%q has no purpose, or no effect", command.Line)
				}
			}
			if a.Impact != c.impact || a.Heal != c.heal || a.Summary != c.summary || a.Plan == "" {
				t.Errorf("advice %+v", a)
			}
			if diff := cmp.Diff(c.lines, lines); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryFaultHasAdvice(t *testing.T) {
	t.Parallel()
	for _, e := range Catalogue() {
		for _, repair := range []ActionKind{"", Replace, Unmount, RemoveDirectory} {
			a := Advise(Finding{Code: e.Code, Details: Details{Repair: repair}}, Caller{})
			if a.Summary == "" || a.Plan == "" || !slices.Contains(Impacts(), a.Impact) || !slices.Contains(Heals(), a.Heal) {
				t.Errorf("%s: %+v", e.Code, a)
			}
		}
	}
}

func TestQuotedIsWhatAShellReads(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "plain/path-1.2_3", "a b", "it's", `back\slash`, "$(reboot)", "`x`", "; rm -rf /", "new\nline", "\x1b[2J", "\u202eright", "\xff\xfe'", "é", "*?[~#!",
	} {
		word := Quote(s)
		if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q gives %q, which a terminal acts on", s, word)
		}
		out, err := exec.Command("bash", "-c", "printf %s "+word).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q gives %s, which a shell reads as %q (%v)", s, word, out, err)
		}
	}
}
