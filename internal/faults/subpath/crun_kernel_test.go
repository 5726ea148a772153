// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/debian"
)

// crunContainer is a container of crun that has a file bound at /etc/x.
type crunContainer struct {
	t         *testing.T
	dir, name string
}

// newBundle makes what crun is given. It needs control groups of version 2 alone, as crun refuses both versions at
// once.
func newBundle(t *testing.T, point string) *crunContainer {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		t.Skip("the kernel lacks control groups of version 2 alone: crun refuses to have both versions")
	}
	must(t, debian.Install(t.Context(), "crun", "busybox"))
	b := &crunContainer{t: t, dir: t.TempDir(), name: fmt.Sprintf("kubediag-test-%d", os.Getpid())}
	bin := filepath.Join(b.dir, "rootfs", "bin")
	for _, dir := range []string{bin, "proc", "dev", "etc"} {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(b.dir, "rootfs", dir)
		}
		must(t, os.MkdirAll(dir, 0o755))
	}
	busybox, err := exec.LookPath("busybox")
	must(t, err)
	program, err := os.ReadFile(busybox)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bin, "busybox"), program, 0o755))
	must(t, os.WriteFile(filepath.Join(b.dir, "config.json"), b.runtimeSpec(point), 0o600))
	t.Cleanup(func() { _ = exec.Command("crun", "delete", "-f", b.name).Run() })
	return b
}

func (b *crunContainer) runtimeSpec(point string) []byte {
	type mounting struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	text, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]int{"uid": 0, "gid": 0}, "args": []string{"/bin/busybox", "sleep", "1000"}, "env": []string{"PATH=/bin"}, "cwd": "/",
		},
		"root": map[string]any{"path": "rootfs"},
		"mounts": []mounting{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/etc/x", Type: "bind", Source: point, Options: []string{"rbind", "rprivate"}},
		},
		"linux": map[string]any{
			"cgroupsPath": "/" + b.name,
			"namespaces":  []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
		},
	})
	must(b.t, err)
	return text
}

// startContainer starts the container and gives the first process; or what crun has said.
func (b *crunContainer) startContainer() (pid int, said string) {
	b.t.Helper()
	output, err := os.CreateTemp(b.t.TempDir(), "said") // no pipe, which the container would keep
	must(b.t, err)
	defer output.Close()
	cmd := exec.Command("crun", "run", "-d", "--bundle", b.dir, "--pid-file", filepath.Join(b.dir, "pid"), b.name)
	cmd.Stdout, cmd.Stderr = output, output
	failed := cmd.Run()
	text, err := os.ReadFile(output.Name())
	must(b.t, err)
	if failed != nil {
		return 0, string(text)
	}
	text, err = os.ReadFile(filepath.Join(b.dir, "pid"))
	must(b.t, err)
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	must(b.t, err)
	return pid, ""
}

// readFile is what the container has in the file.
func (b *crunContainer) readFile() string {
	b.t.Helper()
	out, err := exec.Command("crun", "exec", b.name, "/bin/busybox", "cat", "/etc/x").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
}

// TestCrunContainer has kubernetes#68211 happen to a container of crun: what it says is recognised, the bind is found
// and repaired, and the container starts. In one that still runs, the file is replaced.
func TestCrunContainer(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "app.ini")
	c := newBundle(t, b.point)
	pid, said := c.startContainer()
	if got := c.readFile(); said != "" || got != "one" {
		t.Fatalf("the container does not run: %s, and reads %q", said, got)
	}
	b.Update(b.pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
	if v := b.verdictOf(t); v != Stale {
		t.Fatalf("after the update: %s, want %s", v, Stale)
	}
	source := filepath.Join(b.Volume(b.pod, kubelettest.ConfigMap, "configmap"), "app.ini")
	replaceIn(t, pid, "/etc/x", source)
	if got := c.readFile(); got != "two" {
		t.Errorf("the running container reads %q, want the new content", got)
	}
	must(t, exec.Command("crun", "delete", "-f", c.name).Run())
	if _, said = c.startContainer(); !strings.Contains(said, "No such file or directory") {
		t.Fatalf("with a stale bind crun says %q, want that there is no such file", said)
	}
	must(t, exec.Command("crun", "delete", "-f", c.name).Run())
	state := b.inspectPod(t)[0].State
	b.unmount(t, state)
	b.Bind(source, b.point) // as the kubelet does, where nothing is bound
	if _, said = c.startContainer(); said != "" {
		t.Fatalf("after the repair the container does not start: %s", said)
	}
	if got := c.readFile(); got != "two" {
		t.Errorf("after the repair the container reads %q, want the new content", got)
	}
}

// replaceIn puts a file in the place of a mount of another process' namespace.
func replaceIn(t *testing.T, pid int, point, name string) {
	t.Helper()
	name, err := filepath.EvalSymlinks(name)
	must(t, err)
	ns, err := mountns.Of(pid)
	must(t, err)
	at, err := sys.Lookup(name)
	must(t, err)
	defer at.Close()
	tree, err := sys.CloneTree(at)
	must(t, err)
	defer tree.Close()
	must(t, ns.Do(func() error {
		state, err := mount.Inspect(point)
		return errors.Join(err, mount.Replace(t.Context(), state.ID, mount.ReplaceOptions{Tree: tree}))
	}))
}
