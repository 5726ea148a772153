// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"strings"
	"testing"
)

// TestEveryFindingHasAPrevention, or a reason why there is none, at each place and for each reason.
func TestEveryFindingHasAPrevention(t *testing.T) {
	t.Parallel()
	for _, e := range Known() {
		for _, place := range Places() {
			for _, reason := range append(Reasons(), "") {
				f := Finding{Code: e.Code, Details: Details{Place: place, Reason: reason}}
				if text := Known().Advise(f, Caller{}).Prevention; text == "" || strings.HasSuffix(text, ": ") {
					t.Errorf("%s at %q for %q: %q", e.Code, place, reason, text)
				}
			}
		}
	}
	if text := Known().Advise(Finding{Code: "NoSuchFault"}, Caller{}).Prevention; text != "" {
		t.Errorf("a fault that the catalogue does not have: %q", text)
	}
}

// TestPreventionsAreForThePod: they name the thing to change, and its place.
func TestPreventionsAreForThePod(t *testing.T) {
	t.Parallel()
	pod, web := Pod{Namespace: "shop", Name: "web-0", UID: "u"}, Workload{Kind: "StatefulSet", Name: "web"}
	for name, c := range map[string]struct {
		of   Finding
		want []string
	}{
		"a subPath": {
			Finding{Code: StaleSubPath, Pod: pod, Container: "app", Volume: "config", Details: Details{Workload: web, Place: PlaceSubPath}},
			[]string{"take subPath out of", `volume "config" in container "app" of StatefulSet shop/web`, "kubelet to 1.19"},
		},
		"without a workload": {Finding{Code: WrongSubPath, Pod: pod, Container: "app", Volume: "v"}, []string{"of pod shop/web-0"}},
		"without a name":     {Finding{Code: WrongSubPath, Pod: Pod{UID: "u"}, Volume: "v"}, []string{"of the pod with UID u"}},
		"a claim, by its name in the spec": {
			Finding{Code: WrongSubPath, Pod: pod, Volume: "pvc-1", Details: Details{SpecVolume: "data"}}, []string{`volume "data"`},
		},
		"a dead mount of the node": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Volume: "host", Details: Details{Place: PlaceHostPath}}, []string{"HostToContainer", `volume "host"`},
		},
		"a driver": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Details: Details{Place: PlaceVolume, Driver: "d.example.com"}}, []string{"drain the node before d.example.com is updated"},
		},
		"a link of a driver": {
			Finding{Code: DisconnectedFUSE, Pod: pod, Details: Details{Place: PlaceHostPath, Driver: "d.example.com"}}, []string{"drain the node before d.example.com is updated"},
		},
		"a held device":   {Finding{Code: HeldDevice, Pod: pod, Details: Details{Workload: web}}, []string{"StatefulSet shop/web", "HostToContainer"}},
		"a loop device":   {Finding{Code: HeldDevice, Pod: pod, Details: Details{Path: "/k/plugins/x"}}, []string{"none: "}},
		"FUSE that hangs": {Finding{Code: HungMount, Mount: Mount{FSType: "fuse.x"}}, []string{"fs.fuse.max_request_timeout"}},
		"NFS that hangs":  {Finding{Code: HungMount, Mount: Mount{FSType: "nfs4"}}, []string{"none: only the server can"}},
		"a socket":        {Finding{Code: MissingBindSource, Details: Details{Place: PlaceSocket}}, []string{"none: only the daemon"}},
		"a directory":     {Finding{Code: MissingBindSource, Pod: pod, Volume: "v", Details: Details{Place: PlaceSource}}, []string{"DirectoryOrCreate", "pod shop/web-0"}},
		"a termination log": {
			Finding{Code: StuckTermination, Pod: pod, Volume: "work", Details: Details{Reason: ReasonForeignMount}}, []string{"terminationMessagePath", `"work"`},
		},
		"a process": {
			Finding{Code: StuckTermination, Pod: pod, Details: Details{Reason: ReasonInUse, HeldBy: &Process{PID: 7, Command: "rsync"}}}, []string{"rsync[7]"},
		},
	} {
		text := Known().Advise(c.of, Caller{}).Prevention
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in %q", name, want, text)
			}
		}
	}
}
