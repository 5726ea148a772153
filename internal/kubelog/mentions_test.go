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

// entry is the expected result of a line of testdata/lines.txt.
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
	held, failed := []fault.Code{fault.HeldDevice}, []fault.Code{fault.VolumeIOError}
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
		"name of a mapping in use":  {"error closing luks2-x: mapped device is still in use", Found{Devices: []string{"/dev/mapper/luks2-x"}, Codes: held}},
		"name of a map in use":      {"Nov 25 | 3624a9370: map in use", Found{Devices: []string{"/dev/mapper/3624a9370"}, Codes: held}},
		"name of a LUKS device":     {"Device luks-1 is still in use.", Found{Devices: []string{"/dev/mapper/luks-1"}, Codes: held}},
		"logical volume":            {`Logical volume "vg/pvc-1" contains a filesystem in use.`, Found{Devices: []string{"/dev/vg/pvc-1"}, Codes: held}},
		"device behind a loop":      {`find loopback device which takes file descriptor lock. Skip detaching device. device path: "/dev/sdc"`, Found{Devices: []string{"/dev/sdc"}, Codes: held}},
		"journal":                   {"Aborting journal on device sda-8.", Found{Devices: []string{"/dev/sda"}, Codes: failed}},
		"journal of a mapping":      {"Aborting journal on device dm-3-8.", Found{Devices: []string{"/dev/dm-3"}, Codes: failed}},
		"journal on its own device": {"Aborting journal on device dm-3.", Found{Devices: []string{"/dev/dm-3"}, Codes: failed}},
		"journal's superblock":      {"JBD2: I/O error when updating journal superblock for cciss!c0d0p1-8.", Found{Devices: []string{"/dev/cciss/c0d0p1"}, Codes: failed}},
		"ext4":                      {"EXT4-fs (sdx): Remounting filesystem read-only", Found{Devices: []string{"/dev/sdx"}, Codes: failed}},
		"ext4, error":               {"EXT4-fs error (device nvme0n1p1) in ext4_setattr:1: Journal has aborted", Found{Devices: []string{"/dev/nvme0n1p1"}, Codes: failed}},
		"xfs":                       {"XFS (dm-9): I/O Error Detected. Shutting down filesystem", Found{Devices: []string{"/dev/dm-9"}, Codes: failed}},
		"btrfs":                     {"BTRFS info (device sdb: state EA): forced readonly", Found{Devices: []string{"/dev/sdb"}, Codes: failed}},
		"block layer":               {"blk_update_request: I/O error, dev sdd, sector 2048", Found{Devices: []string{"/dev/sdd"}, Codes: failed}},
		"page of a block device":    {"Buffer I/O error on dev rbd0, logical block 0", Found{Devices: []string{"/dev/rbd0"}, Codes: failed}},
		"path that a kubelet wants": {`path "/srv/pv" does not exist`, Found{Paths: []string{"/srv/pv"}, Codes: []fault.Code{fault.MissingBindSource}}},
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

// TestHints has texts whose fault has no code, and texts that are near them.
func TestHints(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"write /data/x: no space left on device":                                                                                "",
		`path "/opt/cni/bin" is mounted on "/" but it is not a shared mount`:                                                    "private",
		`path "/opt/cni/bin" is mounted on "/" but it is not a shared or slave mount`:                                           "private",
		`Volume ID: "0b39" does not appear staged to "/k/globalmount"`:                                                          "not mounted at its staging path",
		"volume hasn't been staged yet":                                                                                         "not mounted at its staging path",
		"/k/globalmount is not a valid mount point":                                                                             "not mounted at its staging path",
		"the change is staged":                                                                                                  "",
		"unlinkat /k/pods/u/volumes/kubernetes.io~empty-dir/w/x: permission denied":                                             "",
		"mount: /k/pods/u/volume-subpaths/c/a/0: move_mount() failed: No such file or directory.":                               "util-linux 2.41",
		"wrong fs type, bad option, bad superblock on /proc/1/fd/9, missing codepage or helper program":                         "util-linux 2.41",
		"wrong fs type, bad option, bad superblock on /dev/sdb, missing codepage or helper program, or x":                       "refuses the file system",
		"XFS (sdb): Filesystem has duplicate UUID 0b6c - can't mount":                                                           "the same UUID",
		"'fsck' found errors on device /dev/x but could not correct them":                                                       "refuses the file system",
		"mount.nfs: mounting 10.0.0.5:/data failed, reason given by server: No such file or directory":                          "the server of the volume",
		"mount.nfs4: access denied by server while mounting 10.0.0.5:/data":                                                     "the server of the volume",
		"mount error 110 = Connection timed out":                                                                                "the server of the volume",
		"mount error: no mds server is up or the cluster is laggy":                                                              "the server of the volume",
		"Mounting arguments: -t glusterfs -o log-file=/x Output: Mount failed. Please check the log file for more details.":     "the server of the volume",
		"mount.nfs: No such device":                                                                                             "the kernel of the node has no",
		"mount: /k/globalmount: unknown filesystem type 'ceph'.":                                                                "the kernel of the node has no",
		"modprobe: FATAL: Module rbd not found in directory /lib/modules/5.15":                                                  "the kernel of the node has no",
		"staging target path /k/globalmount is not mounted":                                                                     "not mounted at its staging path",
		"mount.nfs: /k/pods/u/x is busy or already mounted or sharecache fail":                                                  "still has the volume mounted",
		"mount error(13): Permission denied":                                                                                    "the server of the volume",
		"Mount error: mount failed: exit status 255":                                                                            "",
		"mount: /mnt: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.": "is not installed",
		"driver name csi.x.com not found in the list of registered CSI drivers":                                                 "does not know the driver",
		"dial unix /var/lib/kubelet/plugins/csi.x.com/csi.sock: connect: connection refused":                                    "does not answer at its socket",
		"dial unix /run/x.sock: connect: connection refused":                                                                    "",
		"fuse: device not found, try 'modprobe fuse' first":                                                                     "has no FUSE",
		"mount: /k/globalmount: special device /dev/rbd4 does not exist.":                                                       "is not on this node",
		`Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x`:                                              "not attached",
		"verifyMount: device already mounted at [/k/pods/u/volumes/kubernetes.io~csi/pv/mount]":                                 "still has the volume mounted",
		"Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[]: timed out":                            "the Event before",
		"ls: cannot open directory '/data': Input/output error":                                                                 "answers with an error",
		"ls: cannot open directory '/cvmfs/atlas': Too many levels of symbolic links":                                           "answers with an error",
		"touch: cannot touch '/data/x': Read-only file system":                                                                  "read-only",
		`MountVolume.SetUp failed for volume "cm" : configmap "web" not found`:                                                  "has not got the ConfigMap",
		`MountVolume.SetUp failed for volume "t" : object "shop"/"kube-root-ca.crt" not registered`:                             "has not got the ConfigMap",
		`MountVolume.SetUp failed for volume "cm" : failed to sync configmap cache: timed out`:                                  "has not got the ConfigMap",
		`MountVolume.SetUp failed for volume "s" : references non-existent secret key: tls.key`:                                 "has not got the ConfigMap",
		`configmap "web" was updated`:                                                                                           "",
		"failed to generate spec: failed to mkdir /opt/data: mkdir /opt/data: read-only file system":                            "",
	} {
		got := Mentions(text).Hints
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: hints %q, want %q", text, got, want)
		}
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

// TestPatternsAreValid compiles each expression: a text that would use it may be rare.
func TestPatternsAreValid(t *testing.T) {
	t.Parallel()
	all := append([]*pattern{uniqueName, podUID}, persistentVolumes...)
	for _, d := range deviceNames {
		all = append(all, d.pattern)
	}
	for _, w := range wordings {
		all = append(all, w.like, w.unlike)
	}
	for _, r := range remarks {
		all = append(all, r.like)
	}
	for _, p := range all {
		if p != nil && p.matches("\x00") {
			t.Errorf("%s matches anything", p.compiled())
		}
	}
}
