// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

// entry is what is expected of a line of testdata/lines.txt.
type entry struct {
	Text     string `json:"text"`
	Mentions Found  `json:"mentions"`
}

func TestLinesFromTheWild(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/found.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var want []entry
	for line := range strings.Lines(string(content)) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		want = append(want, e)
	}
	var got []entry
	for _, line := range lines(t) {
		got = append(got, entry{Decode(line), Mentions(line)})
	}
	if len(got) < 35 {
		t.Errorf("only %d lines were read", len(got))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

const uid = "29da79e5-386c-4e0d-82c1-215f93ff955d"

func TestMentions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want Found
	}{
		"nothing":                    {"back-off restarting failed container", Found{}},
		"device in an array":         {bytesOf("/dev/rbd3 or /dev/mapper/vg-lv"), Found{Devices: []string{"/dev/rbd3", "/dev/mapper/vg-lv"}}},
		"device, once":               {"/dev/sda1, '/dev/sda1': (/dev/sda1).", Found{Devices: []string{"/dev/sda1"}}},
		"directory of devices":       {"ls /dev /dev/", Found{Paths: []string{"/dev", "/dev/"}}},
		"source and target":          {"mount /a/b:/c/d (via /proc/self/fd/6)", Found{Paths: []string{"/a/b", "/c/d", "/proc/self/fd/6"}}},
		"assigned":                   {"mount src=/a/b, dst=/c", Found{Paths: []string{"/a/b", "/c"}}},
		"address":                    {"https://example.org/a/b unix:///run/x.sock", Found{}},
		"relative":                   {"block/image a/b ./c", Found{}},
		"deleted":                    {"/a/b//deleted /", Found{Paths: []string{"/a/b"}}},
		"unique name, klog of today": {`volumeName="kubernetes.io/csi/rbd.csi.ceph.com^0001-09-x"`, Found{Volumes: []string{"kubernetes.io/csi/rbd.csi.ceph.com^0001-09-x"}}},
		"unique name":                {`(UniqueName: \"kubernetes.io/csi/rbd.csi.ceph.com^0001-09-x\")`, Found{Volumes: []string{"kubernetes.io/csi/rbd.csi.ceph.com^0001-09-x"}}},
		"labels are no volumes":      {"node.kubernetes.io/a/b kubernetes.io/arch /plugins/kubernetes.io/csi/x", Found{Paths: []string{"/plugins/kubernetes.io/csi/x"}}},
		"pv of the node's mount": {
			"/var/lib/kubelet/plugins/kubernetes.io/csi/pv/data-0/globalmount",
			Found{PersistentVolumes: []string{"data-0"}, Paths: []string{"/var/lib/kubelet/plugins/kubernetes.io/csi/pv/data-0/globalmount"}},
		},
		"local pv": {
			"/k/plugins/kubernetes.io/local-volume/mounts/disk-1: busy",
			Found{PersistentVolumes: []string{"disk-1"}, Paths: []string{"/k/plugins/kubernetes.io/local-volume/mounts/disk-1"}},
		},
		"pv by what is done":        {`UnmountDevice failed for volume \"data-0\" (UniqueName`, Found{PersistentVolumes: []string{"data-0"}}},
		"volume of a pod":           {`MountVolume.SetUp failed for volume "config" : x`, Found{}},
		"image that is called so":   {"k8s:kubernetes-dynamic-pvc-" + uid, Found{}},
		"pod, klog of today":        {`pod="default/web-0" podUID="` + uid + `"`, Found{PodUIDs: []string{uid}}},
		"pod, klog of 1.24":         {`podUID=` + uid, Found{PodUIDs: []string{uid}}},
		"pod by its cgroup":         {"kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice", Found{PodUIDs: []string{uid}}},
		"pod, written in two ways":  {"/pods/" + uid + "/x -pod" + strings.ReplaceAll(uid, "-", "_"), Found{PodUIDs: []string{uid}, Paths: []string{"/pods/" + uid + "/x"}}},
		"pod by its operation":      {"{volumeName:kubernetes.io/nfs/x podName:" + uid + " nodeName:}", Found{Volumes: []string{"kubernetes.io/nfs/x"}, PodUIDs: []string{uid}}},
		"pod from a file":           {`Orphaned pod "0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d" found`, Found{PodUIDs: []string{"0a1b2c3d0a1b2c3d0a1b2c3d0a1b2c3d"}}},
		"a UUID of something else":  {"filesystem " + uid, Found{}},
		"fault":                     {"umount: x: target is busy", Found{Codes: []fault.Code{fault.HeldDevice}}},
		"fault in an array":         {"umount: " + bytesOf("Device or resource busy"), Found{Codes: []fault.Code{fault.HeldDevice}}},
		"cut":                       {`UnmountDevice failed for volume \"pvc-29da79e5-386c-4e0d`, Found{}},
		"no UTF-8 around a device":  {"\xff/dev/rbd3\xfe \xff /dev/rbd4", Found{Devices: []string{"/dev/rbd4"}}},
		"name of the device mapper": {"device-mapper: remove ioctl on vg-lv  failed", Found{Devices: []string{"/dev/mapper/vg-lv"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, Mentions(c.text)); diff != "" {
				t.Errorf("%q (-want +got):\n%s", c.text, diff)
			}
		})
	}
}

func TestMentionsAreBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 10 * maxFound {
		n := strconv.Itoa(i)
		b.WriteString("/dev/rbd" + n + " /path/" + n + " kubernetes.io/nfs/" + n + " UnmountDevice failed for volume \"pv" + n + "\"\n")
	}
	f := Mentions(b.String())
	for kind, found := range map[string][]string{"devices": f.Devices, "paths": f.Paths, "volumes": f.Volumes, "persistent volumes": f.PersistentVolumes} {
		if len(found) != maxFound || !strings.HasSuffix(found[1], "1") {
			t.Errorf("%d %s, want the first %d", len(found), kind, maxFound)
		}
	}
	if f := Mentions(strings.Repeat(" ", maxText) + "/dev/rbd3"); f.Devices != nil {
		t.Errorf("devices %q behind the bound", f.Devices)
	}
	for _, text := range []string{strings.Repeat("/dev/x:", 1<<18), strings.Repeat("kubernetes.io/a", 1<<18), strings.Repeat("pod", 1<<20)} {
		if f := Mentions(text); len(f.PodUIDs) > 0 {
			t.Errorf("pods %q", f.PodUIDs)
		}
	}
}

func FuzzMentions(f *testing.F) {
	for _, line := range lines(f) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found := Mentions(text)
		for _, names := range [][]string{found.Devices, found.PersistentVolumes, found.Volumes, found.PodUIDs, found.Paths} {
			if slices.Contains(names, "") || len(names) > maxFound || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
				t.Errorf("names %q", names)
			}
			for _, name := range names {
				if strings.ContainsAny(name, " \n\"") {
					t.Errorf("name %q", name)
				}
			}
		}
		if slices.ContainsFunc(found.Paths, func(p string) bool { return p[0] != '/' }) {
			t.Errorf("paths %q", found.Paths)
		}
		if diff := cmp.Diff(codes(Decode(text)), found.Codes); diff != "" && len(text) <= maxText {
			t.Errorf("codes: %s", diff)
		}
	})
}
