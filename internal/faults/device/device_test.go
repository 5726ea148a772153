// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// tableOf reads lines of "ID PARENT DEVICE ROOT POINT [shared:N]".
func tableOf(t *testing.T, lines ...string) *mountinfo.Table {
	t.Helper()
	var text strings.Builder
	for _, l := range lines {
		fields := strings.Fields(l)
		fmt.Fprintf(&text, "%s rw %s - ext4 /dev/x rw\n", strings.Join(fields[:5], " "), strings.Join(fields[5:], " "))
	}
	mounts, err := mountinfo.ParseBytes([]byte(strings.ReplaceAll(text.String(), "  ", " ")))
	if err != nil {
		t.Fatal(err)
	}
	return mountinfo.NewTable(mounts)
}

const global = "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount"

func TestJudge(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	n, err := kubelet.Local(root)
	if err != nil {
		t.Fatal(err)
	}
	plugin := root + "/plugins/kubernetes.io/csi/pv/pvc-1/globalmount"
	pod := root + "/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount"
	for name, c := range map[string]struct {
		host, inside []string // the first of inside is its root, the last the mount
		path, why    string   // why is part of it
	}{
		"a copy":                 {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + plugin}, plugin, ""},
		"of a pod's":             {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + pod}, pod, ""},
		"at the same path":       {[]string{"1 0 8:1 / /"}, []string{"10 9 8:1 / /", "12 10 7:1 / " + plugin}, plugin, ""},
		"under a bind":           {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 " + root + " /k", "12 11 7:1 / /k" + strings.TrimPrefix(plugin, root)}, plugin, ""},
		"host in a subvolume":    {[]string{"1 0 8:1 /@ /"}, []string{"10 9 0:5 / /", "11 10 8:1 /@ /host", "12 11 7:1 / /host" + plugin}, plugin, ""},
		"root of a namespace":    {[]string{"1 0 8:1 / /"}, []string{"12 9 7:1 / /"}, "", "root of its namespace"},
		"in the container alone": {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "12 10 7:1 / " + plugin}, "", "no copy of such a mount"},
		"on another directory":   {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host/mnt/backup"}, "", "no copy of such a mount"},
		"beside the volumes":     {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + root + "/plugins"}, "", "no copy"},
		"prefix of the name":     {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + root + "/plugins2/x"}, "", "no copy"},
		"covered on the host":    {[]string{"1 0 8:1 / /", "2 1 8:9 / " + root}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + plugin}, "", "no copy"},
		"parent is deleted":      {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 /x//deleted /host", "12 11 7:1 / /host" + plugin}, "", "no copy"},
		"mounted on the host":    {[]string{"1 0 8:1 / /", "2 1 7:1 / /elsewhere"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host" + plugin}, plugin, "has that file system mounted"},
		"shared":                 {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host shared:7", "12 11 7:1 / /host" + plugin}, plugin, "peer group 7"},
		"follows the host":       {[]string{"1 0 8:1 / /"}, []string{"10 9 0:5 / /", "11 10 8:1 / /host master:7", "12 11 7:1 / /host" + plugin}, plugin, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tables := mountTables{layoutOf(n), tableOf(t, c.host...), tableOf(t, c.inside...)}
			m, _ := tables.holderTable.ByID(12)
			verdict := tables.judgeByTables(m)
			if verdict.hostPath != c.path || !strings.Contains(verdict.keepReason, c.why) || (verdict.keepReason == "") != (c.why == "") {
				t.Errorf("path %q, why %q, want %q and %q", verdict.hostPath, verdict.keepReason, c.path, c.why)
			}
		})
	}
	inside := tableOf(t, "10 9 0:5 / /", "11 10 8:1 / /host", "12 11 7:1 / /host"+plugin, "13 12 0:9 / /host"+plugin+"/sub")
	tables := mountTables{layoutOf(n), tableOf(t, "1 0 8:1 / /"), inside}
	m, _ := tables.holderTable.ByID(12)
	if verdict := tables.judgeByTables(m); !strings.Contains(verdict.keepReason, "another file system is mounted on it") {
		t.Errorf("with a mount on it: %q", verdict.keepReason)
	}
}

func TestActionsThatNameNoDevice(t *testing.T) {
	t.Parallel()
	i := &Inspector{Finder: &devholder.Finder{}}
	for _, ref := range []*fault.Device{nil, {}, {Name: "/dev/rbd3", Sequence: 1}, {Name: "../etc", Sequence: 1}, {Name: "8:0", Sequence: 1}} {
		if there, err := i.There(ref); there || !errors.Is(err, ErrNoTarget) {
			t.Errorf("%+v is there: %v, %v, want ErrNoTarget", ref, there, err)
		}
		if gone, err := i.Detach(t.Context(), ref, nil); gone || !errors.Is(err, ErrNoTarget) {
			t.Errorf("%+v is gone: %v, %v, want ErrNoTarget", ref, gone, err)
		}
	}
}

// TestNoProcessInTheNamespace: that no process is in one is no evidence where some could not be asked.
func TestNoProcessInTheNamespace(t *testing.T) {
	t.Parallel()
	for denied, want := range map[string]string{"": "", "2 could not be asked for theirs": "2 could not be asked"} {
		how, why := (&inspection{unseenReason: denied}).propagationPath(&HolderInfo{}, tableVerdict{}, mountinfo.Mount{}, "")
		if (how == "") != (want != "") || !strings.Contains(why, want) || (why == "") != (want == "") {
			t.Errorf("%q: how %q, why %q", denied, how, why)
		}
	}
}

func TestVolumeOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":     "",
		global: "pvc-1",
		"/k/pods/uid/volumes/kubernetes.io~csi/pvc-1/mount":                "pvc-1",
		"/k/pods/uid/volumes/kubernetes.io~rbd/pvc-2":                      "pvc-2",
		"/k/pods/uid/volume-subpaths/pvc-3/app/0":                          "pvc-3",
		"/k/plugins/kubernetes.io/local-volume/mounts/pvc-4":               "pvc-4",
		"/data/kubelet/plugins/kubernetes.io/rbd/mounts/k8s-image-dynamic": "k8s-image-dynamic",
	} {
		if got := volumeOf(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

type ownerlessRuntime struct{ err error }

func (r ownerlessRuntime) Owner(context.Context, string) (cri.Owner, error) {
	return cri.Owner{Container: "app"}, r.err
}
func (r ownerlessRuntime) Sandboxes(context.Context) ([]cri.Sandbox, error) { return nil, r.err }

// TestOwner: a process in an unknown container is not taken for a process of the host.
func TestOwner(t *testing.T) {
	t.Parallel()
	contained := "0::/kubepods/pod1/" + strings.Repeat("a", 64) + "\n"
	for name, c := range map[string]struct {
		runtime Runtime
		cgroup  string
		owned   bool
		err     bool
	}{
		"known":                       {ownerlessRuntime{}, contained, true, false},
		"not known":                   {ownerlessRuntime{cri.ErrNotFound}, contained, false, false},
		"runtime does not answer":     {ownerlessRuntime{cri.ErrUnavailable}, contained, false, true},
		"no runtime":                  {nil, contained, false, true},
		"host, no runtime":            {nil, "0::/system.slice/x.service\n", false, false},
		"host, runtime is not there":  {ownerlessRuntime{cri.ErrUnavailable}, "0::/system.slice/x.service\n", false, false},
		"host, runtime knows nothing": {ownerlessRuntime{cri.ErrNotFound}, "0::/init.scope\n", false, false},
	} {
		owner, unknown := ownerOf(t.Context(), c.runtime, c.cgroup)
		if (owner != nil) != c.owned || (unknown != "") != c.err {
			t.Errorf("%s: %+v, %q", name, owner, unknown)
		}
	}
}

func TestCopiesAreInOrder(t *testing.T) {
	t.Parallel()
	usage := &Usage{Report: &devholder.Report{}}
	for i, id := range []uint64{5, 9, 0, 0, 7} {
		usage.HolderInfos = append(usage.HolderInfos, HolderInfo{RecordedMount: fault.Mount{ID: id, MountInfoID: i}, Removable: true, tableOrder: i})
	}
	usage.HolderInfos = append(usage.HolderInfos, HolderInfo{RecordedMount: fault.Mount{ID: 99}})
	var got []int
	for _, h := range usage.Copies() {
		got = append(got, h.RecordedMount.MountInfoID)
	}
	if diff := cmp.Diff([]int{1, 4, 0, 3, 2}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestKeptBy(t *testing.T) {
	t.Parallel()
	var many []mountns.Holder
	for pid := range 12 {
		many = append(many, mountns.Holder{Kind: mountns.Process, PID: pid + 1})
	}
	for want, holders := range map[string][]mountns.Holder{
		"something that was not found":           nil,
		"process 10, 2 more":                     many,
		"descriptor 9 of process 5":              {{Kind: mountns.Descriptor, PID: 5, Number: 9}},
		"thread 6 of process 5":                  {{Kind: mountns.Thread, PID: 5, Number: 6}},
		`the file "/run/ns" that it is bound to`: {{Kind: mountns.NamedMount, Mount: &mountns.Mount{Mount: mountinfo.Mount{Point: "/run/ns"}}}},
	} {
		if got := DescribeNamespaceHolders(holders); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
