// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api || cluster

package cluster

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trace has the signs of a cluster after its end. The test looks for it without the code that removes it.
type trace struct {
	dir     string
	devices []string // of the network
	sockets []string // of the shims
	pods    []string // their UIDs
}

// traceOf notes the signs that can only be seen while the cluster runs.
func traceOf(t *testing.T, c *Cluster, podUIDs ...string) trace {
	t.Helper()
	tr := trace{dir: c.Dir(), pods: podUIDs}
	if c.o.Kubelet == "" {
		return tr
	}
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", c.net.bridge(), "brif"))
	must(t, err)
	tr.devices = append(tr.devices, c.net.bridge())
	for _, port := range ports {
		tr.devices = append(tr.devices, port.Name())
	}
	all, _ := filepath.Glob(filepath.Join(tr.dir, "containerd-state/io.containerd.runtime.v2.task/k8s.io/*/address"))
	for _, path := range all {
		address, err := os.ReadFile(path)
		must(t, err)
		tr.sockets = append(tr.sockets, strings.TrimPrefix(string(address), "unix://"))
	}
	return tr
}

// find returns everything of the cluster that is on the machine now, by kind.
func (tr trace) find(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(kind string, items ...string) {
		if len(items) > 0 {
			found[kind] = append(found[kind], items...)
		}
	}
	add("process", tr.processes()...)
	add("mount", grep("/proc/self/mountinfo", tr.dir)...)
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range loops {
		add("loop device", grep(path, tr.dir)...)
	}
	for _, name := range tr.devices {
		if _, err := net.InterfaceByName(name); err == nil {
			add("device", name)
		}
	}
	for _, socket := range tr.sockets {
		if _, err := os.Lstat(socket); err == nil {
			add("socket", socket)
		}
	}
	add("cgroup", tr.cgroups()...)
	for _, uid := range tr.pods {
		logs, _ := filepath.Glob("/var/log/pods/*" + uid)
		add("log", logs...)
	}
	links, _ := filepath.Glob("/var/log/containers/*")
	for _, link := range links {
		target, _ := os.Readlink(link)
		if strings.HasPrefix(target, tr.dir) || tr.ofPod(target) {
			add("log link", link)
		}
	}
	results, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, path := range results {
		if len(grep(path, tr.dir)) > 0 {
			add("CNI result", path)
		}
	}
	if _, err := os.Lstat(tr.dir); err == nil {
		add("folder", tr.dir)
	}
	return found
}

func (tr trace) ofPod(path string) bool {
	for _, uid := range tr.pods {
		if strings.Contains(path, uid) {
			return true
		}
	}
	return false
}

// processes lists living processes that name the cluster anywhere.
func (tr trace) processes() []string {
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		if len(grep(proc+"/status", "State:\tZ")) > 0 {
			continue
		}
		for _, name := range []string{"environ", "cmdline", "cgroup"} {
			if len(grep(filepath.Join(proc, name), filepath.Base(tr.dir))) > 0 {
				found = append(found, proc)
				break
			}
		}
	}
	return found
}

func (tr trace) cgroups() []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, err error) error {
		// Others come and go meanwhile: those that cannot be read are passed over.
		if err == nil && strings.Contains(path, filepath.Base(tr.dir)) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// grep returns the lines of a file that contain s; a file that cannot be read has none.
func grep(path, s string) []string {
	text, _ := os.ReadFile(path)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, s) {
			lines = append(lines, line)
		}
	}
	return lines
}

// waitNothingLeft fails the test when something of the cluster is still there after 20 s.
func (tr trace) waitNothingLeft(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for left := tr.find(t); len(left) > 0; left = tr.find(t) {
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
