// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"os"
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
	set, waits := Workload{"StatefulSet", "web"}, Refuse(AwaitsDriver, `the staging path "/s" is not alive either`)
	dead := Mount{Point: "/mnt/d", FSType: "fuse.d", Device: "0:41"}
	const abort = "sh -c 'grep -vx 0 /sys/fs/fuse/connections/41/waiting && echo 1 >/sys/fs/fuse/connections/41/abort'"
	const gone, beforeUmount = "the connection to its FUSE daemon is gone", "without it, writes go to the node's own disk"
	for name, c := range map[string]struct {
		finding Finding
		caller  Caller
		impact  Impact
		heal    Heal
		summary string
		lines   []string
	}{
		"stale, and runs": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/p"}, Details: Details{Place: PlaceSubPath, Container: ContainerRuns, Repair: Replace}},
			Caller{}, ImpactNextStart, HealSafe, "the file it is bound to was deleted or replaced", []string{"kubediag recover shop/web-0", "umount -- /k/p"},
		},
		"stale, and down, in another namespace": {
			Finding{Code: StaleSubPath, Mount: Mount{Point: "/k/a b"}, Details: Details{Place: PlaceSubPath, Container: ContainerDown, Repair: Replace}},
			Caller{Automatic: true, Enter: EnterFirst}, ImpactNow, HealAutomatic, "the file it is bound to was deleted or replaced",
			[]string{"nsenter -t 1 -m umount -- '/k/a b'"},
		},
		"stale, where no line leads": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/p"}, Details: Details{Place: PlaceSubPath, Container: ContainerDown, Repair: Replace}},
			Caller{Automatic: true, Enter: EnterNever}, ImpactNow, HealAutomatic, "the file it is bound to was deleted or replaced",
			[]string{"kubediag recover shop/web-0"},
		},
		"missing": {
			Finding{Code: MissingBindSource, Pod: pod, Details: Details{Place: PlaceSource, Container: ContainerDown}}, Caller{Automatic: true}, ImpactNow,
			HealPerson, "its source does not exist", []string{"kubectl -n shop get pod web-0 -o yaml"},
		},
		"stale, and its pod is going": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/p"}, Details: Details{
				Place: PlaceSubPath, PodState: PodDeleting, KeepsPod: true, Repair: Unmount,
			}}, Caller{Pods: " --pods=p.json"}, ImpactTerminating, HealSafe,
			"the file it is bound to was deleted or replaced; its pod is going, and no container of it runs",
			[]string{"kubediag recover --pods=p.json shop/web-0", "umount -- /k/p"},
		},
		"stale, and perhaps the last mount": {
			Finding{Code: StaleSubPath, Pod: pod, Mount: Mount{Point: "/k/p"}, Details: Details{
				Place: PlaceSubPath, PodState: PodWanted, Container: ContainerRuns, Refusal: Refuse(InUse, "the unmount can wait"),
			}}, Caller{}, ImpactNextStart, HealPerson, "the file it is bound to was deleted or replaced; left alone: the unmount can wait", nil,
		},
		"a missing socket": {
			Finding{Code: MissingBindSource, Pod: pod, Details: Details{Place: PlaceSocket, Container: ContainerDown}}, Caller{}, ImpactNow,
			HealPerson, "its source does not exist", []string{"kubectl -n shop get pod web-0 -o yaml"},
		},
		"disconnected, and staged for others": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceVolume, PodState: PodWanted, Workload: set, Driver: driver, Refusal: waits, SharedStaging: 1,
			}}, Caller{}, ImpactNow, HealDriver, gone + "; cephfs.csi.ceph.com has mounted nothing in its place", nil,
		},
		"disconnected": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceVolume, PodState: PodWanted, Workload: set, Driver: driver, Refusal: waits,
			}}, Caller{}, ImpactNow, HealDriver, gone + "; cephfs.csi.ceph.com has mounted nothing in its place",
			[]string{"kubectl -n shop delete pod web-0"},
		},
		"disconnected, a bare pod": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{Place: PlaceVolume, PodState: PodWanted, Driver: driver, Refusal: waits}},
			Caller{}, ImpactNow, HealDriver, gone + "; cephfs.csi.ceph.com has mounted nothing in its place",
			[]string{"kubectl -n shop get pod web-0 -o yaml"},
		},
		"disconnected, a static pod": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceVolume, PodState: PodWanted, Workload: Workload{"Node", "n1"}, Driver: driver, Refusal: waits,
			}}, Caller{}, ImpactNow, HealDriver, gone + "; cephfs.csi.ceph.com has mounted nothing in its place", nil,
		},
		"disconnected, deleted already": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceVolume, PodState: PodDeleting, Workload: set, Driver: driver, Refusal: Refuse(PodGoes, "the pod is being deleted"),
			}}, Caller{}, ImpactNow, HealPerson, gone + "; left alone: the pod is being deleted", nil,
		},
		"a client in the kernel": {
			Finding{Code: DisconnectedFUSE, Mount: Mount{FSType: "ceph"}, Details: Details{Place: PlaceVolume, Driver: driver, Refusal: waits}},
			Caller{}, ImpactNow, HealDriver, "the connection to its server is gone; cephfs.csi.ceph.com has mounted nothing in its place", nil,
		},
		"disconnected, and back": {
			Finding{Code: DisconnectedFUSE, Mount: dead, Details: Details{Place: PlaceVolume, Driver: driver, Repair: Replace}}, Caller{}, ImpactNow, HealSafe,
			gone + "; cephfs.csi.ceph.com has mounted the volume again", nil,
		},
		"a copy that the spec does not ask for": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceSubPath, PodState: PodWanted, Workload: set, Driver: driver, Refusal: Refuse(NotProven, "the pod's spec asks for no subPath there"),
			}}, Caller{}, ImpactNow, HealPerson, gone + "; left alone: the pod's spec asks for no subPath there", []string{"kubectl -n shop delete pod web-0"},
		},
		"dead on a hostPath": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{
				Place: PlaceHostPath, PodState: PodWanted, Workload: set, Refusal: Refuse(NodeMount, beforeUmount),
			}}, Caller{}, ImpactNow, HealPerson, gone + "; left alone: " + beforeUmount, []string{"stat -- /mnt/d || umount -- /mnt/d"},
		},
		"dead over a living mount": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{Place: PlaceHostPath, PodState: PodWanted, Workload: set, Repair: Unmount}},
			Caller{Automatic: true}, ImpactNow, HealSafe, gone + "; a living mount of the same source lies beneath it", []string{"kubediag recover shop/web-0"},
		},
		"dead in an emptyDir of a pod that goes": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Mount: dead, Details: Details{Place: PlaceInsideVolume, PodState: PodDeleting, KeepsPod: true, Repair: Unmount}},
			Caller{}, ImpactTerminating, HealSafe, gone + "; its pod is going, and no container of it runs", []string{"kubediag recover shop/web-0"},
		},
		"of no driver": {Finding{Code: StaleFileHandle}, Caller{}, ImpactNow, HealPerson, "the server no longer knows its directory", nil},
		"answers with an error": {
			Finding{Code: VolumeIOError, Pod: pod, Details: Details{Place: PlaceVolume, Driver: driver}}, Caller{Automatic: true}, ImpactNow, HealPerson,
			"its file system answers with an error", []string{"dmesg --level=emerg,alert,crit,err,warn"},
		},
		"hung": {
			Finding{
				Code: HungMount, Mount: Mount{Device: "0:41", FSType: "fuse.ceph"},
				Details: Details{Place: PlaceHostPath, Driver: driver, Daemon: &Process{PID: 21087, Command: "ceph-fuse", State: ProcessStopped}},
			},
			Caller{}, ImpactNow, HealPerson, "it does not answer; its daemon ceph-fuse[21087] is stopped",
			[]string{"kill -CONT 21087", "ps -o pid,stat,wchan:32,args -p 21087", abort},
		},
		"held by a copy": {
			Finding{
				Code: HeldDevice, Pod: Pod{Namespace: "mon", Name: "exporter-x"}, Container: "exporter", Mount: Mount{Point: "/host/k"},
				Details: Details{Place: PlaceDevice, HeldBy: &Process{PID: 77, Command: "node_exporter"}, Device: "rbd3", Repair: Unmount},
			},
			Caller{Automatic: true, Flags: " --kubelet-root=/k"}, ImpactDetach, HealSafe,
			"held by container exporter of pod mon/exporter-x (node_exporter[77]), which has a private copy of the host's mounts",
			[]string{"kubediag release --kubelet-root=/k rbd3", "kubediag holders --kubelet-root=/k rbd3"},
		},
		"held by others": {
			Finding{Code: HeldDevice, Details: Details{Place: PlaceDevice, Device: "rbd3", Refusal: Refuse(InUse, "loop device loop3 is made of it")}},
			Caller{}, ImpactDetach, HealPerson, "the device is still mounted elsewhere; left alone: loop device loop3 is made of it",
			[]string{"kubediag holders rbd3"},
		},
		"left": {
			Finding{Code: OrphanedPodVolumes, Pod: Pod{UID: "u"}, Details: Details{Place: PlacePodDirectory, Path: "/k/pods/u", Repair: RemoveDirectory}},
			Caller{}, ImpactCleanup, HealSafe, "the pod is gone and its directory is left", []string{"kubediag recover u", "find /k/pods/u -xdev -ls"},
		},
		"left, and mounted": {
			Finding{Code: OrphanedPodVolumes, Details: Details{Place: PlacePodDirectory, Path: "/k/pods/u", Refusal: Refuse(InUse, "something is mounted on it")}},
			Caller{}, ImpactCleanup, HealPerson, "the pod is gone and its directory is left; left alone: something is mounted on it",
			[]string{"find /k/pods/u -xdev -ls"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := Known().Advise(c.finding, c.caller)
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
	pod := Pod{Namespace: "shop", Name: "web-0", UID: "u"}
	for _, e := range Known() {
		for place := range e.At {
			for _, state := range []PodState{"", PodWanted, PodDeleting, PodEnded} {
				for _, owner := range []Workload{{}, {"StatefulSet", "web"}, {"Node", "n1"}} {
					for _, repair := range []ActionKind{"", Replace, Unmount, RemoveDirectory} {
						for _, shared := range []int{0, 3} {
							f := Finding{Code: e.Code, Pod: pod, Mount: Mount{Point: "/p", FSType: "fuse", Device: "0:9"}, Details: Details{
								Place: place, PodState: state, Workload: owner, Repair: repair, Device: "rbd1", Path: "/k", HeldBy: &Process{PID: 7},
								SharedStaging: shared,
							}}
							checkAdvice(t, f)
							if e.NoPlan == waitsForDriver {
								f.Details.Refusal = Refuse(AwaitsDriver, "nothing is staged")
								checkAdvice(t, f)
							}
						}
					}
				}
			}
		}
	}
}

// checkAdvice checks that no line makes a false promise.
func checkAdvice(t *testing.T, f Finding) {
	t.Helper()
	a, d := Known().Advise(f, Caller{}), f.Details
	if a.Summary == "" || a.Plan == "" || Known().NextStep(f) == "" || !slices.Contains(Impacts(), a.Impact) || !slices.Contains(Heals(), a.Heal) {
		t.Errorf("%s at %s: %+v", f.Code, d.Place, a)
	}
	comesBack := d.PodState == PodWanted && d.Workload.Kind == "StatefulSet"
	mounted := slices.Contains([]Place{PlaceVolume, PlaceSubPath, PlaceContainer}, d.Place)
	texts := []string{a.Summary, a.Plan, Known().NextStep(f)}
	for _, c := range a.Commands {
		texts = append(texts, c.Line, c.Purpose)
		if strings.Contains(c.Line, "nsenter") {
			t.Errorf("%s at %s enters a mount namespace: %s", f.Code, d.Place, c.Line)
		}
	}
	for _, text := range texts {
		for phrase, untrue := range map[string]bool{
			"file or directory":                     d.Place == PlaceSocket,
			"for which the volume is mounted again": d.SharedStaging > 0,
			"an eviction of the pod does that":      d.SharedStaging > 0,
			"delete the pod, which":                 d.SharedStaging > 0,
			"the kubelet binds the current file":    d.Repair == Unmount || d.PodState == PodDeleting || d.PodState == PodEnded,
		} {
			if untrue && strings.Contains(text, phrase) {
				t.Errorf("%s at %s, pod %q, plan %q, shared with %d: %s", f.Code, d.Place, d.PodState, d.Repair, d.SharedStaging, text)
			}
		}
		if deletes := strings.Contains(text, "delete pod") || strings.Contains(text, "delete the pod"); deletes && (!comesBack || !mounted) {
			t.Errorf("%s at %s, pod %q of %q: %s", f.Code, d.Place, d.PodState, d.Workload, text)
		}
	}
	if umounts := slices.ContainsFunc(a.Commands, func(c Command) bool { return strings.HasPrefix(c.Line, "umount") }); f.Code == StaleSubPath && umounts != (d.Repair != "") {
		t.Errorf("%s with the plan %q: umount is printed: %v", f.Code, d.Repair, umounts)
	}
	if Known().EvictionHelps(f) && (!mounted || d.Repair != "" || d.PodState == PodDeleting || d.PodState == PodEnded) {
		t.Errorf("%s at %s, pod %q: an eviction is said to help", f.Code, d.Place, d.PodState)
	}
}

func TestAdviceOfSocketsAndSharedStaging(t *testing.T) {
	t.Parallel()
	shared := Details{Place: PlaceVolume, PodState: PodWanted, Workload: Workload{"StatefulSet", "web"}, SharedStaging: 2, Refusal: Refuse(AwaitsDriver, "x")}
	for name, c := range map[string]struct {
		finding    Finding
		plan, next string
	}{
		"a missing socket": {
			Finding{Code: MissingBindSource, Details: Details{Place: PlaceSocket}}, "nothing: the daemon that makes the socket has to be started, or the volume changed",
			"start the daemon that makes the socket, or change the volume in the pod's template",
		},
		"a directory in the place of a socket": {
			Finding{Code: SourceTypeMismatch, Details: Details{Place: PlaceSocket}},
			"nothing: what lies in the place of the socket has to go, or the volume has to be changed",
			"move away what lies in the place of the socket and start the daemon that makes it, or change the volume in the pod's template",
		},
		"a dead staging path that others use": {
			Finding{Code: DisconnectedFUSE, Details: shared}, waitsForDriver + "; a new pod on this node gets the same dead mount, because 2 more use it",
			"have the driver mount the volume again and create another Diagnosis, or remove all pods of this node that use the volume: before that, a " +
				"new pod here gets the same dead mount",
		},
	} {
		if plan, next := Known().Advise(c.finding, Caller{}).Plan, Known().NextStep(c.finding); plan != c.plan || next != c.next {
			t.Errorf("%s: plan %q, next %q", name, plan, next)
		}
	}
}

func TestEvictionHelps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code    Code
		details Details
		want    bool
	}{
		"a volume":                    {DisconnectedFUSE, Details{Place: PlaceVolume}, true},
		"a volume that hangs":         {HungMount, Details{Place: PlaceVolume, Refusal: Refuse(NoAnswer, "x")}, true},
		"it can be repaired":          {DisconnectedFUSE, Details{Place: PlaceVolume, Repair: Replace}, false},
		"a hostPath":                  {DisconnectedFUSE, Details{Place: PlaceHostPath}, false},
		"a hostPath that hangs":       {HungMount, Details{Place: PlaceHostPath}, false},
		"a stale hostPath":            {StaleFileHandle, Details{Place: PlaceHostPath}, false},
		"inside an emptyDir":          {DisconnectedFUSE, Details{Place: PlaceInsideVolume}, false},
		"a copy of a dead hostPath":   {DisconnectedFUSE, Details{Place: PlaceContainer, Refusal: Refuse(NodeMount, "x")}, false},
		"data on the node's own disk": {DeletedVolumeSource, Details{Place: PlaceVolume, Refusal: Refuse(HasData, "x")}, false},
		"it goes already":             {DisconnectedFUSE, Details{Place: PlaceVolume, PodState: PodDeleting}, false},
		"a bind":                      {StaleSubPath, Details{Place: PlaceSubPath}, false},
		"no place is known":           {DisconnectedFUSE, Details{}, false},
	} {
		if got := Known().EvictionHelps(Finding{Code: c.code, Details: c.details}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// hostile are texts that a shell or a terminal could act on.
var hostile = []string{
	"", "plain/path-1.2_3", "a b", "it's", `back\slash`, "$(touch pwned)", "`touch pwned`", "; touch pwned; #", "new\nline", "\x1b[2J", "\u202eright",
	"\xff\xfe'", "é", "é'; touch pwned; #", "\xff'; touch pwned; #", "\n'\ntouch pwned\n'", `\'; touch pwned; #`, "\x01\\'; touch pwned; #", "*?[~#!", "目录 '",
	"~root/*", "tab\there", "\u2066iso\u2069 %s",
}

func TestQuotedIsWhatAShellReads(t *testing.T) {
	t.Parallel()
	for _, s := range append(hostile, "-rf", "{a,b}", "!!", "a=b", "\u200fmark", "soft\u00adhyphen", "line\u2028end", "no\u00a0break", `"; touch pwned; "`,
		"${IFS}touch", "&& touch pwned", "> pwned", "<(touch pwned)") {
		checkQuoted(t, s)
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(checkQuoted)
}

// checkQuoted has shells read a quoted text. dash has no form for text that cannot be printed: it must run nothing.
func checkQuoted(t *testing.T, s string) {
	if strings.ContainsRune(s, 0) { // no argument has it
		return
	}
	word := Quote(s)
	if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%q gives %q, which a terminal acts on", s, word)
	}
	for _, shell := range shells {
		name := shell[0]
		cmd := exec.Command(name, append(slices.Clone(shell[1:]), "-c", "printf '<%s>' "+word)...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != "<"+s+">" && (name != "dash" || !strings.HasPrefix(word, "$'")) || strings.Count(string(out), "<") != 1+strings.Count(s, "<") {
			t.Errorf("%q gives %s, which %s reads as %q (%v)", s, word, name, out, err)
		}
		if files, err := os.ReadDir(cmd.Dir); err != nil || len(files) > 0 {
			t.Errorf("%q gives %s, of which %s has run a part: %v, %v", s, word, name, files, err)
		}
	}
}
