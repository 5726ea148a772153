// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/render"
)

var must = kerneltest.Must

// reports are reports whose texts and JSON are in testdata.
var reports = map[string]*scanReport{
	"clean": reportOf(nil, scanCoverage{
		Kubelet:       scannedKubelet{Root: "/var/lib/kubelet", PID: 1234, MountNamespace: 4026531841},
		Counts:        scanCounts{Pods: 250, Mounts: 1776, Binds: 1500},
		Classes:       &mountstate.Classes{Mounts: 1730, Wanted: 1700, Inside: 14, Drivers: 8, Kubelet: 2, Hidden: 6},
		KubeletRenews: false, PodSpecs: podSpecs{Given: true, Pods: 248}, Milliseconds: 12.345,
	}),
	"faults": reportOf([]fault.Finding{
		{
			Code: fault.StaleSubPath, Pod: fault.Pod{UID: "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10", Namespace: "default", Name: "web"},
			Container: "app", Volume: "configmap",
			Mount: fault.Mount{
				ID: 4294967999, MountInfoID: 216, ParentID: 30, Namespace: 4026531841, Device: "8:1", FSType: "ext4",
				Root:  "/kubelet/pods/5f0e/volumes/kubernetes.io~configmap/configmap/..2021/app.ini//deleted",
				Point: "/var/lib/kubelet/pods/5f0e/volume-subpaths/configmap/app/0",
			},
			Evidence: []string{"the source was deleted and has no link left", "device 8:1, inode 7, link count 0"},
		},
		{
			Code: fault.MissingBindSource, Pod: fault.Pod{UID: "no \x1b[2J name"},
			Mount: fault.Mount{MountInfoID: 217, Device: "0:40", Root: "/x\n", Point: "/k/\xff", FSType: "tmpfs"},
		},
		{
			Code: fault.HeldDevice, Volume: "pvc-1", Holder: "process 77 (chronyd)",
			Mount: fault.Mount{
				ID: 4294968000, MountInfoID: 218, ParentID: 30, Namespace: 4026532300, Device: "252:48", FSType: "ext4",
				Root: "/", Point: "/var/lib/kubelet/plugins/kubernetes.io/rbd/mounts/pvc-1",
			},
			Evidence: []string{"the kernel refuses to open device /dev/rbd3 (252:48) exclusively: it is busy"},
		},
	}, scanCoverage{
		Kubelet: scannedKubelet{Root: "/k \x1b", MountNamespace: 4026531841},
		Gaps:    scanGaps{Denied: 1, NotLookedAt: []mountstate.Gap{{What: "1 process", Why: "it refuses\x1b", Do: "ask"}}},
		Counts:  scanCounts{Pods: 1, Mounts: 40, Binds: 2, Volumes: 3},
		Notes:   []string{"no kubelet that serves \x1b was seen"}, KubeletRenews: replacesUnknown, Milliseconds: 0.5,
		Unproven: []unprovenPlace{
			{Point: "/k/pods/u/volume-subpaths/v/c/0", Why: "the file system says \x1b"},
			{Point: "/k/pods/u/volumes/x/v/mount", Why: "denied\x1b", Pod: scanPod{UID: "u"}, Volume: "v"},
		},
		PodNames: podNameSources{[]string{namesFromLogs}, []string{"runtime: deadline\u202e exceeded"}},
	}),
	"many": reportOf(faultsOfManyCauses(), scanCoverage{
		Kubelet:       scannedKubelet{Root: "/var/lib/kubelet", PID: 1234, MountNamespace: 4026531841},
		Counts:        scanCounts{Pods: 10, Mounts: 62, Binds: 7, Volumes: 4},
		KubeletRenews: false, PodSpecs: podSpecs{Given: true, Pods: 9}, Milliseconds: 2065.8,
	}),
	"down": reportOf(nil, scanCoverage{
		Kubelet:       scannedKubelet{Root: "/var/lib/kubelet", Down: true, MountNamespace: 4026531841},
		Counts:        scanCounts{Pods: 1, Mounts: 40, Binds: 1},
		KubeletRenews: replacesUnknown, Milliseconds: 9,
	}),
	"unseen": reportOf(nil, scanCoverage{
		Kubelet: scannedKubelet{Root: "/var/lib/kubelet", MountNamespace: 1},
		Gaps: scanGaps{Denied: 77, Partial: 2, NotLookedAt: []mountstate.Gap{
			{What: "77 processes, and what only they have mounted", Why: "user 65534 may not look into them", Do: asRootRemedy},
			{What: "what the container runtime knows", Why: "it did not answer for 2.0 s"},
		}},
		Counts: scanCounts{Pods: 3, Mounts: 40, Binds: 9}, KubeletRenews: true,
	}),
	"unjudged": reportOf(nil, scanCoverage{
		Kubelet: scannedKubelet{Root: "/var/lib/kubelet", PID: 1234, MountNamespace: 1},
		Counts:  scanCounts{Pods: 3, Mounts: 40, Binds: 9, Volumes: 2}, KubeletRenews: true, PodSpecs: podSpecs{Given: true, Pods: 3},
		Unproven: []unprovenPlace{{
			Point: "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount", Why: "access to it is denied: permission denied",
			Pod: scanPod{"u", "shop", "web-0"}, Volume: "pvc-1",
		}},
	}),
	"renewed": reportOf(nil, scanCoverage{
		Kubelet: scannedKubelet{Root: "/var/lib/kubelet", PID: 1, MountNamespace: 1},
		Counts:  scanCounts{Pods: 3, Mounts: 40, Binds: 9}, KubeletRenews: true, RenewedByKubelet: 1, PodSpecs: podSpecs{Given: true, Pods: 3},
	}),
}

// faultsOfManyCauses are faults of several causes.
func faultsOfManyCauses() []fault.Finding {
	pod := func(namespace, name string) fault.Pod {
		return fault.Pod{Namespace: namespace, Name: name, UID: "uid-of-" + name}
	}
	point := func(name string) string {
		return "/var/lib/kubelet/pods/uid-of-" + name + "/volumes/kubernetes.io~csi/pvc/mount"
	}
	const driver = "cephfs.csi.ceph.com"
	runs := fault.Details{Place: fault.PlaceSubPath, PodState: fault.PodWanted, Container: fault.ContainerRuns, Repair: fault.Replace, Workload: fault.Workload{Kind: "ReplicaSet", Name: "web-7d9f8b6c5"}}
	var all []fault.Finding
	for _, name := range []string{"web-7d9f8b6c5-x2x9k", "web-7d9f8b6c5-bbbbb"} {
		for _, container := range []string{"nginx", "sidecar"} {
			all = append(all, fault.Finding{
				Code: fault.StaleSubPath, Pod: pod("shop", name), Container: container, Volume: "nginx-conf", Details: runs,
				Mount:    fault.Mount{ID: 7, Point: "/var/lib/kubelet/pods/uid-of-" + name + "/volume-subpaths/nginx-conf/" + container + "/0"},
				Evidence: []string{"the root of the mount is deleted: its link count is 0"},
			})
		}
	}
	return append(all,
		fault.Finding{
			Code: fault.HeldDevice, Volume: "pvc-held", Holder: "process 21214 (node_exporter)", Pod: pod("monitoring", "node-exporter-x2x9k"),
			Mount: fault.Mount{ID: 9, Device: "7:0", Point: "/host/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-held/globalmount"},
			Details: fault.Details{
				Place: fault.PlaceDevice, Device: "loop0", HeldBy: &fault.Process{PID: 21214, Command: "node_exporter"}, Repair: fault.Unmount,
			},
		},
		fault.Finding{
			Code: fault.DisconnectedFUSE, Pod: pod("ml", "trainer-0"), Volume: "pvc-dead", Mount: fault.Mount{ID: 4, Device: "0:40", FSType: "fuse.ceph", Point: point("trainer-0")},
			Details: fault.Details{
				Driver: driver, Place: fault.PlaceVolume, PodState: fault.PodWanted, Workload: fault.Workload{Kind: "StatefulSet", Name: "trainer"},
				Refusal:    fault.Refuse(fault.AwaitsDriver, "the driver has nothing mounted for the whole node"),
				SpecVolume: "data", PersistentVolume: "pvc-dead",
			},
		},
		fault.Finding{
			Code: fault.HungMount, Pod: pod("ml", "trainer-1"), Volume: "pvc-hung",
			Mount: fault.Mount{ID: 5, Device: "0:41", FSType: "fuse.ceph", Point: point("trainer-1")},
			Details: fault.Details{
				Driver: driver, Place: fault.PlaceVolume, PodState: fault.PodWanted, Workload: fault.Workload{Kind: "StatefulSet", Name: "trainer"},
				Refusal: fault.Refuse(fault.NoAnswer, "it does not answer, but may recover"), Daemon: &fault.Process{PID: 21087, Command: "ceph-fuse", State: fault.ProcessStopped},
			},
		},
		fault.Finding{
			Code: fault.OrphanedPodVolumes, Pod: fault.Pod{UID: "29da79e5-386c-4e0d-82c1-215f93ff955d"},
			Details: fault.Details{Place: fault.PlacePodDirectory, Path: "/var/lib/kubelet/pods/29da79e5-386c-4e0d-82c1-215f93ff955d", Repair: fault.RemoveDirectory},
		})
}

// reportOf is a report of a node with a name, at a time.
func reportOf(findings []fault.Finding, l scanCoverage) *scanReport {
	r := newReport(findings, l, fault.Caller{})
	r.Node, r.Time = "worker-7", time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	return r
}

// screens are where reports are shown, by the end of the name of their file.
var screens = map[string]terminal.Screen{
	"text": {}, "80": {Width: 80, Terminal: true}, "120": {Width: 120, Terminal: true},
	"40": {Width: 40, Terminal: true, ASCII: true}, "colour": {Width: 80, Terminal: true, Colour: true},
}

// shownAs returns a report as it is shown.
func shownAs(r *scanReport, s terminal.Screen) string {
	return scanView{Screen: s, report: r}.reportText()
}

func TestReports(t *testing.T) {
	t.Parallel()
	for name, report := range reports {
		for end, screen := range screens {
			verbtest.Golden(t, name+"."+end, shownAs(report, screen))
		}
		verbtest.Golden(t, name+".v", scanView{report: report, verbose: true}.reportText())
		verbtest.Golden(t, name+".brief", report.briefLine())
		var b bytes.Buffer
		must(t, render.WriteJSON(&b, report))
		verbtest.Golden(t, name+".json", b.String())
		want := map[string]error{"faults": verb.ErrFaults, "many": verb.ErrFaults, "down": verb.ErrFaults, "unseen": errUnseen, "unjudged": errUnjudged}[name]
		if err := report.finalError(); !errors.Is(err, want) {
			t.Errorf("%s ends with %v, want %v", name, err, want)
		}
	}
}

// TestLinesFit: nothing but a word that must stay whole is longer than a line.
func TestLinesFit(t *testing.T) {
	t.Parallel()
	for name, r := range reports {
		for columns := 30; columns < 200; columns++ {
			for _, line := range strings.Split(shownAs(r, terminal.Screen{Width: columns, Terminal: true}), "\n") {
				if terminal.Columns(line) > columns && len(strings.Fields(line)) > 2 && !strings.HasPrefix(line, "  kubediag ") && !strings.HasPrefix(line, "  systemctl ") {
					t.Errorf("%s in %d columns: %q has %d", name, columns, line, terminal.Columns(line))
				}
			}
		}
	}
}

func TestEveryFaultOfTheCatalogueIsExplained(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Known() {
		text := scanView{report: reportOf([]fault.Finding{{Code: e.Code}}, scanCoverage{}), verbose: true}.reportText()
		for _, part := range []string{string(e.Code), e.Title, e.Repair, "kubediag explain " + string(e.Code)} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q is not in the text", e.Code, part)
			}
		}
	}
}

// faultsOfOneCause are n faults of one cause, three in each pod of one workload, or of as many as there are pods.
func faultsOfOneCause(n int, workloads bool) (all []fault.Finding) {
	for i := range n {
		pod := fmt.Sprintf("web-7d9f8b6c5-%05d", i/3)
		if workloads {
			pod = fmt.Sprintf("app%d-7d9f8b6c5-x2x9k", i/3)
		}
		all = append(all, fault.Finding{
			Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: "shop", Name: pod, UID: fmt.Sprint(i / 3)}, Container: fmt.Sprintf("c%d", i%3),
			Volume: "nginx-conf", Mount: fault.Mount{ID: uint64(i), Point: fmt.Sprintf("/k/%d", i)}, Details: fault.Details{Repair: fault.Replace},
		})
	}
	return all
}

// TestOneVolumeHasOneName: rows about one volume have one name of it, whichever of its names the fault was found by.
func TestOneVolumeHasOneName(t *testing.T) {
	t.Parallel()
	pod := fault.Pod{Namespace: "shop", Name: "web", UID: "u"}
	dead := fault.Finding{Code: fault.DisconnectedFUSE, Pod: pod, Volume: "pvc-sw", Details: fault.Details{SpecVolume: "d", PersistentVolume: "pvc-sw"}}
	stale := fault.Finding{Code: fault.StaleSubPath, Pod: pod, Container: "app", Volume: "d", Details: fault.Details{PersistentVolume: "pvc-sw"}}
	unknown := fault.Finding{Code: fault.DisconnectedFUSE, Pod: pod, Volume: "pvc-sw", Details: fault.Details{PersistentVolume: "pvc-sw"}}
	for name, c := range map[string]struct {
		found               fault.Finding
		column, reason, row string
	}{
		"the kubelet's name":    {dead, "d", "PersistentVolume pvc-sw: ", "d (PersistentVolume pvc-sw)"},
		"the name in the spec":  {stale, "d", "app, PersistentVolume pvc-sw: ", "d (PersistentVolume pvc-sw)"},
		"the spec is not known": {unknown, "pvc-sw", "the connection", "pvc-sw"},
	} {
		place := placesInOrder(reportOf([]fault.Finding{c.found}, scanCoverage{}).Faults)[0]
		f := place.faults[0]
		if place.volumeText() != c.column || !strings.HasPrefix(place.reasonText(false), c.reason) || f.volumeText() != c.row {
			t.Errorf("%s: column %q, reason %q, row %q", name, place.volumeText(), place.reasonText(false), f.volumeText())
		}
		if f.kubeletVolume() != "pvc-sw" || !f.hasName("pvc-sw") || !f.hasName(c.column) {
			t.Errorf("%s: the kubelet's name is %q, and names select %v, %v", name, f.kubeletVolume(), f.hasName("pvc-sw"), f.hasName(c.column))
		}
	}
	if known, not := reportOf([]fault.Finding{dead}, scanCoverage{}), reportOf([]fault.Finding{unknown}, scanCoverage{}); known.Faults[0].key() != not.Faults[0].key() {
		t.Error("a fault is another one once the spec of its pod is known")
	}
}

func TestManyFaultsOfOneCauseTakeFewLines(t *testing.T) {
	t.Parallel()
	for _, workloads := range []bool{false, true} {
		for _, n := range []int{300, 5000} {
			r := reportOf(faultsOfOneCause(n, workloads), scanCoverage{})
			text := shownAs(r, terminal.Screen{Width: 80})
			if lines := strings.Count(text, "\n"); lines > 40 || r.Verdict.Faults != n || r.Verdict.Places != 1 || len(r.Verdict.PodsNextStart) != (n+2)/3 {
				t.Errorf("%d faults, %t: %d lines, verdict of %d pods, %d places\n%s", n, workloads, lines, len(r.Verdict.PodsNextStart), r.Verdict.Places, text)
			}
			if line := r.briefLine(); len(line) > maxBriefLength+1 {
				t.Errorf("%q has %d bytes", line, len(line))
			}
		}
	}
}

// TestBriefIsShort with names of any length.
func TestBriefIsShort(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		var all []fault.Finding
		for i := range n {
			name := strings.Repeat("n\u202e", i)
			all = append(all, fault.Finding{Code: fault.DeletedVolumeSource, Pod: fault.Pod{Namespace: name, Name: name, UID: fmt.Sprint(i)}, Volume: name})
		}
		line := reportOf(all, scanCoverage{Kubelet: scannedKubelet{Down: n%2 == 0}}).briefLine()
		if len(line) > maxBriefLength+1 || strings.Count(line, "\n") != 1 || strings.ContainsFunc(line, func(r rune) bool { return r > 0x7e }) {
			t.Errorf("%d faults: %q has %d bytes", n, line, len(line))
		}
	}
}

func TestStems(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"web-7d9f8b6c5-x2x9k": "web", "web-x2x9k": "web", "db-0": "db", "db-12": "db", "api": "api", "kube-proxy": "kube-proxy", "": "",
		"a-b-c": "a-b-c", "etcd-node-1": "etcd-node", "job-28391049-x2x9k": "job",
	} {
		if got := verb.NameStem(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
