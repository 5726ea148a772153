// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/render"
)

const globalMount = "/var/lib/kubelet/plugins/kubernetes.io/rbd/mounts/pvc-1"

var (
	rbd3     = blockdev.Device{Number: blockdev.Number{Major: 252, Minor: 48}, Name: "rbd3", Kind: blockdev.KRBD, Sequence: 7}
	ext4     = []blockdev.FileSystem{{Type: "ext4", Number: rbd3.Number, Evidence: "/sys/fs/ext4/rbd3"}}
	survey   = mountns.Survey{Backend: "kernel", Namespaces: 40, Mounts: 2500}
	allSeen  = devholder.Coverage{Mounts: survey, Processes: true, Tasks: 300, Links: 9000, Denied: 1, Unanswered: 2, Overlays: 80, Unplaced: 1, Loops: 3}
	seenFrom = coverageOrigin{KubeletRoot: "/var/lib/kubelet", KubeletPID: 1234, MountNamespace: 4026531841, Milliseconds: 12.345}
)

// exporterHolder is a container that has a copy of the mount of a volume.
func exporterHolder() device.HolderInfo {
	patch := "spec:\n  template:\n    spec:\n      containers:\n      - name: exporter\n        volumeMounts:\n" +
		"        - mountPath: /host\n          mountPropagation: HostToContainer\n          name: root\n"
	return device.HolderInfo{
		Holder: devholder.Holder{
			Kind: devholder.Mount, Path: "/host" + globalMount, PIDs: []int{21839, 21840},
			Mount: mountns.Mount{
				Mount:  mountinfo.Mount{ID: 2892, Parent: 2729, Major: 252, Minor: 48, Root: "/", Point: "/host" + globalMount, FSType: "ext4"},
				Unique: 4294968000, Namespace: mountns.Namespace{PID: 21839, Inode: 4026532300},
			},
			NamespaceHolders: []mountns.Holder{{Kind: mountns.Process, PID: 21839}, {Kind: mountns.Process, PID: 21840}},
		},
		In: device.HolderContainer{
			Owner:     &cri.Owner{ContainerID: strings.Repeat("4f", 32), Container: "exporter", Image: "registry.example/exporter:1"},
			Pod:       fault.Pod{Namespace: "monitoring", Name: "node-exporter-x", UID: "29da79e5-386c-4e0d-82c1-215f93ff955d"},
			Container: "exporter", Workload: fault.Workload{Kind: "DaemonSet", Name: "node-exporter"},
			Since: time.Date(2026, 3, 1, 10, 0, 0, 0, time.FixedZone("", 3600)),
		},
		Origin: device.MountOrigin{
			HostPath: globalMount, Volume: "pvc-1", CarrierMount: &cri.Mount{HostPath: "/", ContainerPath: "/host", ReadOnly: true},
			VolumeMount: "root", Patch: patch,
		},
		Command: "node_exporter", Removable: true, Why: "it is a copy of the kubelet's former mount",
	}
}

// hostileNamesHolder is a process with control characters in its own name and in that of its file.
func hostileNamesHolder() device.HolderInfo {
	return device.HolderInfo{
		Holder: devholder.Holder{
			Kind: devholder.OpenFile, Path: "/\x1b[2J\xff (deleted)", PIDs: []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
			Detail: "its mount is in no namespace: lazily unmounted",
		},
		Command: "rm\u202e", Why: "it is no mount",
	}
}

func useOf(t *testing.T, c *device.Usage) deviceUse {
	t.Helper()
	c.Report.Holders = nil
	for _, h := range c.HolderInfos {
		c.Report.Holders = append(c.Report.Holders, h.Holder)
	}
	u, err := newDeviceUse(c, c.LiveUse)
	must(t, err)
	return u
}

// holdersReports are reports whose text and JSON are in testdata.
func holdersReports(t *testing.T) map[string]deviceReport {
	t.Helper()
	report := func(r devholder.Report) *devholder.Report {
		r.Device = rbd3
		return &r
	}
	held := useOf(t, &device.Usage{
		Report:      report(devholder.Report{Busy: true, FileSystems: ext4, Coverage: devholder.Coverage{Mounts: survey}}),
		HolderInfos: []device.HolderInfo{exporterHolder()}, Removable: true, Why: "it is held by 1 mounts",
	})
	held.release = "kubediag release rbd3"
	stuck := useOf(t, &device.Usage{
		Report:      report(devholder.Report{Busy: true, FileSystems: ext4, Coverage: allSeen}),
		HolderInfos: []device.HolderInfo{exporterHolder(), hostileNamesHolder()}, Why: "open file holds it too and is no mount",
	})
	hidden := useOf(t, &device.Usage{Report: report(devholder.Report{
		Busy: true, FileSystems: ext4, Coverage: allSeen, Hidden: []string{"a descriptor on its way through a unix socket", "an \x1b overlay"},
	})})
	host := exporterHolder()
	host.Removable, host.Origin.Patch, host.Why = false, "", "it is the kubelet's own mount"
	inUse := useOf(t, &device.Usage{
		Report: report(devholder.Report{Busy: true, FileSystems: ext4, Coverage: devholder.Coverage{Mounts: survey}}),
		Host:   true, HolderInfos: []device.HolderInfo{host, exporterHolder()}, LiveUse: []string{"a file system on it is mounted in the kubelet's own mount namespace"},
	})
	inUse.Device.MountPoint = globalMount
	free := useOf(t, &device.Usage{Report: report(devholder.Report{Coverage: allSeen}), Why: "no mount holds it"})
	named := func(u deviceUse, from coverageOrigin) *holdersReport {
		u.Looked.Origin = from
		return &holdersReport{schemaVersion, u}
	}
	left := func(all ...deviceUse) *abandonedReport {
		return &abandonedReport{schemaVersion, append([]deviceUse{}, all...), holderCoverage{Passed: namespaceCoverage(survey), Origin: seenFrom}}
	}
	blind := left()
	blind.Looked.Passed.Denied, blind.Looked.Passed.Partial = 77, 2
	blind.Looked.Origin.NotLookedAt = []mountstate.Gap{{What: "77 processes, and what only they have mounted", Why: "user 65534 may not look into them", Do: asRootRemedy}}
	dumb := coverageOrigin{
		KubeletRoot: "/k", KubeletPID: 1, MountNamespace: 2, NameErrors: []string{"runtime: \x1b"}, Milliseconds: 1,
		NotLookedAt: []mountstate.Gap{{What: "what the container runtime knows", Why: "it did not answer\x1b"}}, Notes: []string{"waited\x1b"},
	}
	return map[string]deviceReport{
		"held": named(held, seenFrom), "stuck": named(stuck, dumb), "hidden": named(hidden, seenFrom), "inuse": named(inUse, seenFrom),
		"free": named(free, coverageOrigin{KubeletRoot: "/var/lib/kubelet", MountNamespace: 4026531841}),
		"left": left(held, inUse), "none": left(), "unseen": blind,
	}
}

func TestHoldersReports(t *testing.T) {
	t.Parallel()
	reports := holdersReports(t)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		for _, f := range []verb.Format{verb.Text, verb.JSON} {
			t.Run(name+"."+string(f), func(t *testing.T) {
				t.Parallel()
				var status error
				switch name {
				case "left", "held", "stuck", "hidden":
					status = verb.ErrFaults
				case "unseen":
					status = errUnseen
				}
				var b bytes.Buffer
				if err := writeReport(&b, f, reports[name]); !errors.Is(err, status) {
					t.Errorf("ends with %v, want %v", err, status)
				}
				verbtest.Golden(t, "holders-"+name+"."+string(f), b.String())
				if err := writeReport(brokenPipe{}, f, reports[name]); !errors.Is(err, errBroken) || errors.Is(err, verb.ErrFaults) {
					t.Errorf("into a broken pipe it ends with %v", err)
				}
			})
		}
	}
}

// TestOnlyFreeDevicesMayHaveHiddenHolders has processes that cannot be read: a device that is held, or in use, is so all
// the same.
func TestOnlyFreeDevicesMayHaveHiddenHolders(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]error{stateFree: errUnseen, stateInUse: nil, stateHeld: verb.ErrFaults} {
		r := &holdersReport{schemaVersion, deviceUse{Device: useDevice{State: state}}}
		r.Looked.Origin.NotLookedAt = []mountstate.Gap{{What: "1 process", Why: "it refuses"}}
		if err := writeReport(io.Discard, verb.Text, r); !errors.Is(err, want) {
			t.Errorf("%s: ends with %v, want %v", state, err, want)
		}
	}
}

// TestReportsFitTheScreen: a line is longer than the screen only if a word of it is, or if people paste it.
func TestReportsFitTheScreen(t *testing.T) {
	t.Parallel()
	s := terminal.Screen{Width: 60, Terminal: true}
	texts := map[string]string{
		"probe": (&probeReport{Path: "/mnt", Evidence: []string{strings.Repeat("no answer ", 20)}}).reportText(s),
		"lint": (&lintReport{Findings: []lint.Located{{File: "a.yaml", Finding: lint.Finding{Kind: "Pod", Name: "p",
			Summary: strings.Repeat("a volume ", 20), Cure: strings.Repeat("change it ", 20)}}}}).reportText(s),
	}
	for name, r := range holdersReports(t) {
		texts["holders "+name] = r.reportText(s)
	}
	for name, text := range texts {
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if terminal.Columns(strings.TrimSuffix(line, "\n")) > s.Width && len(words) > 0 && terminal.Columns(words[len(words)-1]) < s.Width/2 {
				t.Errorf("%s: a line is too long: %q", name, line)
			}
		}
	}
}

func TestADeviceThatCannotBeTestedIsNotCalledFree(t *testing.T) {
	t.Parallel()
	denied := errors.New("denied")
	c := &device.Usage{Report: &devholder.Report{Device: rbd3, Untested: denied}}
	if _, err := newDeviceUse(c, nil); !errors.Is(err, denied) {
		t.Errorf("error %v, want that of the kernel", err)
	}
	c.Report.Holders, c.HolderInfos = []devholder.Holder{exporterHolder().Holder}, []device.HolderInfo{exporterHolder()}
	if u, err := newDeviceUse(c, nil); err != nil || u.Device.State != stateHeld || u.Device.Untested == "" {
		t.Errorf("with a mount: %+v, %v, want it held and untested", u.Device, err)
	}
}

func TestManyHoldersAreCountedForPeople(t *testing.T) {
	t.Parallel()
	u := deviceUse{Device: useDevice{State: stateHeld}}
	for range maxHolders + 2 {
		u.Holders = append(u.Holders, newUseHolder(exporterHolder()))
	}
	b := &render.Page{}
	u.addTo(b, 0)
	if n := strings.Count(b.String(), "\n  mount /host"); n != maxHolders || !strings.Contains(b.String(), "and 2 holders more") {
		t.Errorf("%d holders told:\n%s", n, b)
	}
	if n := strings.Count(b.String(), "mountPropagation: HostToContainer"); n != 1 {
		t.Errorf("the change is told %d times", n)
	}
}
