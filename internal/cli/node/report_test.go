// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/fault"
)

// runVerb runs a verb that must end well and gives what it writes.
func runVerb(t *testing.T, cmd *cobra.Command, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// reports are reports whose text and JSON are in testdata.
var reports = map[string]*scanReport{
	"clean": newReport(nil, looked{
		KubeletRoot: "/var/lib/kubelet", KubeletPID: 1234, MountNamespace: 4026531841, Pods: 250, Mounts: 1776, Binds: 1500,
		KubeletRenews: false, PodSpecs: podSpecs{Given: true, Pods: 248}, Milliseconds: 12.345,
	}),
	"faults": newReport([]fault.Finding{
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
	}, looked{
		KubeletRoot: "/k \x1b", MountNamespace: 4026531841, Denied: 1, Pods: 1,
		NotLookedAt: []gap{{"1 process", "it refuses\x1b", "ask"}}, Notes: []string{"no kubelet that serves \x1b was seen"}, Mounts: 40, Binds: 2, KubeletRenews: renewsUnknown,
		Volumes: 3, VolumesIncomplete: []string{"volume \"v\": denied\x1b"},
		Unproven:  []unproven{{"/k/pods/u/volume-subpaths/v/c/0", "the file system says \x1b"}},
		NamesFrom: []string{namesFromLogs}, NameErrors: []string{"runtime: deadline\u202e exceeded"}, Milliseconds: 0.5,
	}),
	"unseen": newReport(nil, looked{
		NotLookedAt: []gap{{"77 processes, and what only they have mounted", "user 65534 may not look into them", asRoot},
			{"what the container runtime knows", "it did not answer for 2.0 s", ""}},
		KubeletRoot: "/var/lib/kubelet", MountNamespace: 1, Denied: 77, Partial: 2, Pods: 3, Mounts: 40, Binds: 9, KubeletRenews: true,
	}),
	"renewed": newReport(nil, looked{
		KubeletRoot: "/var/lib/kubelet", KubeletPID: 1, MountNamespace: 1, Pods: 3, Mounts: 40, Binds: 9, KubeletRenews: true, RenewedByKubelet: 1,
	}),
}

func TestReports(t *testing.T) {
	t.Parallel()
	for name, r := range reports {
		for _, f := range []format{textFormat, jsonFormat} {
			t.Run(name+"."+string(f), func(t *testing.T) {
				t.Parallel()
				want, err := os.ReadFile("testdata/" + name + "." + string(f))
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				var status error
				switch {
				case len(r.Faults) > 0:
					status = ErrFaults
				case name == "unseen":
					status = errUnseen
				}
				if err := r.write(&b, f); !errors.Is(err, status) {
					t.Errorf("ends with %v, want %v", err, status)
				}
				if diff := cmp.Diff(string(want), b.String()); diff != "" {
					t.Errorf("written (-want +got):\n%s", diff)
				}
				if err := r.write(brokenPipe{}, f); !errors.Is(err, errBroken) || errors.Is(err, ErrFaults) {
					t.Errorf("into a broken pipe it ends with %v", err)
				}
			})
		}
	}
}

func TestACleanResultIsOneLine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"clean", "renewed"} {
		if text := reports[name].text(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "No faults found.") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestEveryFaultOfTheCatalogueIsExplained(t *testing.T) {
	t.Parallel()
	for _, e := range fault.Catalogue() {
		text := newReport([]fault.Finding{{Code: e.Code}}, looked{}).text()
		for _, part := range []string{string(e.Code), e.Title, e.Repair, e.Runbook} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q is not in the text", e.Code, part)
			}
		}
	}
}
