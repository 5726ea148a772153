// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// aRecording is of a node with one stale bind.
func aRecording() nodeRecording {
	st := mount.State{ID: mount.ID{Point: "/k/pods/u/volume-subpaths/v/c/0", Root: "/a//deleted"}, FSType: "tmpfs", Deleted: true, Gone: true}
	return nodeRecording{
		node: nodeRecord{
			Seen: scanOrigin{Node: "n1", Time: time.Unix(1700000000, 0).UTC()}, KubeletRoot: "/k", PodsDir: "/k/pods", MountNamespace: 5, KubeletPID: 7,
			Entries: []string{"u"}, PodUIDs: []string{"u"}, RuntimeNames: recordNames(podNames{"u": {Namespace: "shop", Name: "web"}}, nil),
			LogNames: recordNames(nil, kubelet.ErrNoRuntime),
		},
		evidence: map[string]any{
			subPathsEntry: &subpath.Evidence{Coverage: mountstate.Coverage{Namespace: 5, Pods: 1, Mounts: 3, Binds: 1}, Found: []subpath.BindEvidence{{
				SubPath: kubelet.SubPath{PodUID: "u", Volume: "v", Container: "c"}, Expected: podinfo.SubPathMount{Container: "c"}, State: st,
			}}},
			sourcesEntry: &subpath.Lookups{}, volumesEntry: &volume.Recording{}, orphansEntry: &orphan.Evidence{}, leavingEntry: []leaving.Remains{}, mountsEntry: &mountstate.Facts{},
			stacksEntry: &nodemount.Evidence{},
		},
	}
}

// Names of the entries of evidence.
const (
	subPathsEntry = "evidence/subpaths.json"
	sourcesEntry  = "evidence/sources.json"
	devicesEntry  = "evidence/devices.json"
	volumesEntry  = "evidence/volumes.json"
	orphansEntry  = "evidence/orphans.json"
	leavingEntry  = "evidence/leaving.json"
	mountsEntry   = "evidence/mounts.json"
	stacksEntry   = "evidence/stacks.json"
)

func subPathsOf(has nodeRecording) *subpath.Evidence {
	return has.evidence[subPathsEntry].(*subpath.Evidence)
}
func volumesOf(has nodeRecording) *volume.Recording {
	return has.evidence[volumesEntry].(*volume.Recording)
}
func orphansOf(has nodeRecording) *orphan.Evidence {
	return has.evidence[orphansEntry].(*orphan.Evidence)
}

// writeBundle writes a recording as a bundle.
func writeBundle(t testing.TB, has nodeRecording) *bundle.Bundle {
	t.Helper()
	c := &bundleCollection{Bundle: &bundle.Bundle{}}
	c.addEvidence(has)
	if c.failed != nil {
		t.Fatal(c.failed)
	}
	return c.Bundle
}

// TestScanFromABundle: without evidence in the bundle, a search counts as not made.
func TestScanFromABundle(t *testing.T) {
	t.Parallel()
	s, err := scanOfBundle(writeBundle(t, aRecording()))
	must(t, err)
	report, err := s.newScanReport(t.Context(), scanOptions{pod: "shop/web"})
	must(t, err)
	if len(report.Faults) != 1 || report.Faults[0].Code != fault.StaleSubPath || report.Faults[0].Pod.Name != "web" || report.Node != "n1" || !report.Time.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("report %+v", report)
	}
	if gaps := report.Looked.Gaps.NotLookedAt; len(gaps) != 1 || gaps[0].What != "devices" || !strings.Contains(gaps[0].Why, "the bundle has no answer") {
		t.Errorf("not looked at %+v, want devices alone", gaps)
	}
	if report.Looked.Kubelet.PID != 7 || report.Looked.Counts.Pods != 1 || report.Looked.Kubelet.MountNamespace != 5 {
		t.Errorf("looked %+v", report.Looked)
	}
}

func TestBundleWithoutEvidence(t *testing.T) {
	t.Parallel()
	if _, err := scanOfBundle(&bundle.Bundle{}); !errors.Is(err, bundle.ErrRefused) || !strings.Contains(err.Error(), nodeEntry) {
		t.Errorf("error %v", err)
	}
	b := writeBundle(t, nodeRecording{})
	broken := &bundle.Bundle{}
	must(t, errors.Join(broken.Add(nodeEntry, "", b.File(nodeEntry)), broken.Add(volumesEntry, "", []byte(`{"volumes":5}`))))
	if _, err := scanOfBundle(broken); !errors.Is(err, bundle.ErrRefused) || !strings.Contains(err.Error(), volumesEntry) {
		t.Errorf("error %v", err)
	}
}

// TestBundleNamesWrongFlags before it looks at the node.
func TestBundleNamesWrongFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--whole-pods":     "--whole-pods: needs --pods",
		"--pods=- --log=-": "--pods=- cannot be with --log=-: standard input is read once",
		"--kubelet-root=a": `--kubelet-root="a": must be an absolute path without . and .. in it`,
		"--kubelet-pid=-1": "--kubelet-pid=-1: must not be negative",
	} {
		if _, err := verbtest.Run(t, NewBundleCommand(""), strings.Fields(args)...); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

// TestFromFlags: a bundle is of a node that is chosen already.
func TestFromFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--from", "b", "--pods", "p"}, {"--from", "b", "--kubelet-root", "/k"}, {"--from", "b", "--watch"}, {"--from", "/none/b"},
	} {
		if _, err := verbtest.Run(t, NewScanCommand(""), args...); err == nil || errors.Is(err, verb.ErrFaults) || !strings.Contains(err.Error(), "from") {
			t.Errorf("%q: error %v", args, err)
		}
	}
}

// TestCollectionIsClean: credentials and control characters are taken out of all text.
func TestCollectionIsClean(t *testing.T) {
	t.Parallel()
	c := &bundleCollection{Bundle: &bundle.Bundle{}}
	c.addText("a.txt", "", "password=hunter2hunter2 \x1b[2J\u202e")
	c.addJSON("b.json", "", map[string]string{"x": "\x1b]0;", "token": "abcdefghijkl"})
	for name, not := range map[string][]string{"a.txt": {"hunter2", "\x1b", "\u202e"}, "b.json": {"\x1b", "abcdefghijkl"}} {
		for _, text := range not {
			if strings.Contains(string(c.File(name)), text) {
				t.Errorf("%s has %q: %s", name, text, c.File(name))
			}
		}
	}
	var v map[string]string
	if err := json.Unmarshal(c.File("b.json"), &v); err != nil || v["x"] != "\x1b]0;" {
		t.Errorf("b.json is %v, %v", v, err)
	}
}

func TestKubeletLines(t *testing.T) {
	t.Parallel()
	log := "of no interest\nrbd: failed to unmap device /dev/rbd3, error exit status 16: Device or resource busy\n" + strings.Repeat("x", 8<<10) + "\n"
	lines, err := lastKubeletLines("-", strings.NewReader(log))
	if err != nil || len(lines) != 1 || !strings.Contains(lines[0], "rbd3") {
		t.Errorf("lines %q, %v", lines, err)
	}
	if _, err := lastKubeletLines(t.TempDir(), nil); err == nil {
		t.Error("a directory was read")
	}
}

// FuzzEvidence has anything be in the entries of a bundle that is well otherwise.
func FuzzEvidence(f *testing.F) {
	b := writeBundle(f, aRecording())
	f.Add(b.File(nodeEntry), b.File(subPathsEntry), []byte(`{}`), []byte(`{}`), b.File(volumesEntry), b.File(orphansEntry), []byte(`{}`), []byte(`[{}]`))
	f.Add([]byte(`{"podSpecs":true,"podUIDs":["u"]}`), []byte(`{"found":[{}]}`), []byte(`{"missing":{"/a":true},"volumes":{"u":[{}]}}`),
		[]byte(`{"table":[{"ID":1,"Parent":1}],"tables":{"3":[{"ID":1,"Parent":2},{"ID":2,"Parent":1}]},`+
			`"devices":[{"report":{"Holders":[{"Kind":"mount","Mount":{"ID":1,"Namespace":{"Inode":3}}}]}}]}`),
		[]byte(`{"volumes":[{"evidence":{"Mount":{"ID":1},"Staging":{}},"copies":[{}]}]}`), []byte(`{"pods":[{"allMounts":3,"entries":[{}]}]}`),
		[]byte(`{"items":[{"metadata":{"uid":"u"},"spec":{"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/a","subPath":"b"}]}],`+
			`"volumes":[{"name":"v","hostPath":{"path":"/a"}}]}}]}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, node, subPaths, sources, devices, volumes, orphans, pods, left []byte) {
		var b bundle.Bundle
		for name, content := range map[string][]byte{
			nodeEntry: node, subPathsEntry: subPaths, sourcesEntry: sources, devicesEntry: devices, volumesEntry: volumes, orphansEntry: orphans,
			podsEntry: pods, leavingEntry: left,
		} {
			must(t, b.Add(name, "", content))
		}
		s, err := scanOfBundle(&b)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := s.newScanReport(ctx, scanOptions{})
		if ctx.Err() != nil {
			t.Error("it does not end")
		}
		if err == nil {
			_ = scanView{report: r}.reportText()
		}
	})
}
