// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

func TestPodNamesFromLogDirectories(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	// Behind an absolute link, which is one of the process' root directory and not of ours.
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot, "/var/log", "/disk/default_web-0_"+testPodUID,
		"/disk/kube-system_etcd-a.b_0123456789abcdef0123456789abcdef", "/disk/"+testPodUID, "/disk/a_b", "/disk/a_b_c_d", "/disk/_b_c",
		"/disk/second_name_"+testPodUID)
	m.addLink(7, "root/var/log/pods", "/disk")
	node, err := (&Finder{Proc: m.proc}).Node(t.Context())
	m.must(err)
	m.must(os.WriteFile(m.procPath(7, "mountinfo"), nil, 0o600))
	got, err := node.PodNames(t.Context())
	m.must(err)
	want := map[string]PodName{
		testPodUID:                         {"default", "web-0"},
		"0123456789abcdef0123456789abcdef": {"kube-system", "etcd-a.b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	m.must(os.Remove(m.procPath(7, "root/var/log/pods")))
	if _, err := node.PodNames(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such directory: %v, want ENOENT", err)
	}
	m.must(os.WriteFile(m.procPath(7, "root/var/log/pods"), nil, 0o600))
	if _, err := node.PodNames(t.Context()); err == nil {
		t.Error("a file was read as a directory")
	}
}

func TestPodNamesOfAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, podLogs), 0o755); err != nil {
		t.Fatal(err)
	}
	if names, err := podNames(root, mountinfo.NewTable(nil)); err != nil || len(names) != 0 {
		t.Errorf("names %v, %v, want none", names, err)
	}
}

// TestPodNamesOnWhatMayHang has the logs, or the disk that a link leads to, lie on a file system of the network.
func TestPodNamesOnWhatMayHang(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "disk"), 0o755), os.MkdirAll(filepath.Join(root, "var/log"), 0o755),
		os.Symlink("/disk", filepath.Join(root, podLogs))); err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"/disk", "/var", "/var/log"} {
		table := mountinfo.NewTable([]mountinfo.Mount{{ID: 1, Point: "/", FSType: "ext4"}, {ID: 2, Parent: 1, Point: point, FSType: "nfs4"}})
		if names, err := podNames(root, table); !errors.Is(err, mountns.ErrMayBlock) {
			t.Errorf("NFS at %q: %v, %v", point, names, err)
		}
	}
}

func FuzzParsePodLogs(f *testing.F) {
	f.Add("default_web-0_" + testPodUID)
	f.Add("a__b")
	f.Add("___")
	f.Fuzz(func(t *testing.T, entry string) {
		uid, name, ok := parsePodLogs(entry)
		if again := strings.Join([]string{name.Namespace, name.Name, uid}, "_"); ok && again != entry {
			t.Errorf("%q was parsed to %q", entry, again)
		}
	})
}
