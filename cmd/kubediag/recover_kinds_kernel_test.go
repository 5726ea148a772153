// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/nfs"
)

// heals has the program find a volume's fault, refuse it as long as nothing can take the place of the mount, and repair it once
// the driver has done its part.
func (w *brokenNode) heals(t *testing.T, code fault.Code, driver func()) {
	t.Helper()
	only := "--only=" + string(code)
	w.run(t, "scan", "--pods="+w.pods).says(t, 1, string(code))
	w.unchanged(t, func() *result { return w.recover(t, "--yes", only) }).says(t, 1, string(code)+" default/web, volume claim: refused because ", "Next: ")
	driver()
	w.unchanged(t, func() *result { return w.recover(t, "--dry-run", only) }).says(t, 1, "would replace "+w.Point, "lost: nothing")
	w.recover(t, "--yes", only).says(t, 0, string(code)+" default/web, volume claim: healed: a second scan no longer finds it")
	w.run(t, "scan", "--pods="+w.pods).says(t, 0, "nothing broken.")
	if text := w.ReadHost(w.Point); text != "new" {
		t.Errorf("the volume has %q", text)
	}
}

// mountVolume has the driver mount the volume by other means. dir is the volume's directory in the file system.
func (w *brokenNode) mountVolume(t *testing.T, dir string, stage func()) {
	t.Helper()
	must(t, systest.UnmountPath(w.Point, true))
	w.Unstage()
	stage()
	must(t, sys.BindMount(filepath.Join(w.Staging, dir), w.Point))
	w.run(t, "scan", "--pods="+w.pods).says(t, 0, "nothing broken.")
}

// TestRecoverOfADeletedSource: the directory of the volume is deleted, and made again.
func TestRecoverOfADeletedSource(t *testing.T) {
	w := newNode(t, volumetest.New(t))
	dir := filepath.Join(w.Staging, w.Dir)
	fill := func(content string) {
		must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "data"), []byte(content), 0o644)))
	}
	w.mountVolume(t, w.Dir, func() {
		must(t, sys.NewMount("none", w.Staging, "tmpfs", ""))
		fill("old")
	})
	must(t, os.RemoveAll(dir))
	w.heals(t, fault.DeletedVolumeSource, func() { fill("new") })
}

// TestRecoverOfAStaleHandle: the daemon, and a server, do not know the directory any more.
func TestRecoverOfAStaleHandle(t *testing.T) {
	t.Run("FUSE", func(t *testing.T) {
		w := newNode(t, volumetest.New(t))
		w.Forget()
		w.heals(t, fault.StaleFileHandle, func() { w.Remount("new") })
	})
	t.Run("NFS", func(t *testing.T) {
		server := nfs.Start(t)
		w := newNode(t, volumetest.New(t))
		stage := func() { server.Mount("pv", w.Staging, "vers=4.2") }
		server.Replace("pv", "old")
		w.mountVolume(t, ".", stage)
		server.Replace("pv", "new")
		w.heals(t, fault.StaleFileHandle, func() {
			w.Unstage()
			stage()
		})
	})
}

// age is for how long nothing has changed in the directories that are left.
const age = 2 * time.Hour

// strand mounts a file system at the kubelet's directory of pods that has the directories of pods that are gone, as they were left
// long ago: one with empty directories and the kubelet's copies of keys, and one with data. Such times cannot be set in a mounted file
// system, so they are written into the image.
func (w *brokenNode) strand(t *testing.T) {
	t.Helper()
	from := t.TempDir()
	for _, dir := range []string{
		string(w.Pod.UID) + "/volumes", orphantest.Gone + "/volumes/kubernetes.io~csi/" + orphantest.Volume + "/mount",
		orphantest.Gone + "/volumes/kubernetes.io~empty-dir/cache", orphantest.Other + "/volumes/kubernetes.io~empty-dir/cache",
	} {
		must(t, os.MkdirAll(filepath.Join(from, dir), 0o755))
	}
	// The record that was not written out before the node was reset.
	must(t, os.WriteFile(filepath.Join(from, orphantest.Gone, "volumes/kubernetes.io~csi", orphantest.Volume, "vol_data.json"), nil, 0o600))
	must(t, orphantest.WriteKeys(filepath.Join(from, orphantest.Gone, "volumes/kubernetes.io~configmap/cfg")))
	must(t, os.WriteFile(filepath.Join(from, orphantest.Other, "volumes/kubernetes.io~empty-dir/cache/data"), []byte("x"), 0o600))
	image := newImage(t, 16<<20)
	tool(t, "mkfs.ext4", "-q", "-I", "256", "-d", from, image)
	var script strings.Builder
	must(t, filepath.WalkDir(from, func(name string, _ os.DirEntry, err error) error {
		for _, field := range []string{"ctime", "mtime", "crtime"} {
			fmt.Fprintf(&script, "set_inode_field %q %s @%d\n", "/"+strings.TrimPrefix(strings.TrimPrefix(name, from), "/"), field, time.Now().Add(-age).Unix())
		}
		return err
	}))
	commands := filepath.Join(t.TempDir(), "commands")
	must(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	tool(t, "debugfs", "-w", "-f", commands, image)
	must(t, sys.NewMount(attach(t, image), w.Node.PodsDir(), "ext4", ""))
	t.Cleanup(func() { must(t, systest.UnmountPath(w.Node.PodsDir(), false)) })
}

// cleanUp does the work of the kubelet once a pod that is gone has no volume any more: it removes the rest of its
// directory.
func (w *brokenNode) cleanUp(t *testing.T, uid string) {
	tick := time.NewTicker(10 * time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			volumes, err := filepath.Glob(filepath.Join(w.Node.PodDir(uid), "volumes/*/*"))
			if err == nil && len(volumes) == 0 {
				if err := os.RemoveAll(w.Node.PodDir(uid)); err != nil {
					t.Error(err)
				}
				return
			}
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		<-done
		tick.Stop()
	})
}

// TestRecoverOfOrphans removes the remains of a pod that is gone, and refuses the directory that has data.
func TestRecoverOfOrphans(t *testing.T) {
	w := newNode(t, &volumetest.Scene{Scene: kubelettest.New(t), Pod: kubelettest.NewPod()})
	w.strand(t)
	pid := "--kubelet-pid=" + w.kubelet(t)
	run := func(verb string, args ...string) *result {
		return callers[0].run(t, w.s.program, "", append([]string{verb, pid, "--only=OrphanedPodVolumes"}, args...)...)
	}
	recovered := func(args ...string) *result {
		return run("recover", append([]string{"--data-root=" + w.data}, args...)...)
	}
	pods := "--pods=" + w.pods
	left := filepath.Join(w.Node.PodDir(orphantest.Other), "volumes/kubernetes.io~empty-dir/cache/data")
	run("scan", pods).says(t, 1, "OrphanedPodVolumes", "1 of 2 can be healed safely")
	recovered("--dry-run", "-v", pods).says(t, 1, "would remove "+w.Node.PodDir(orphantest.Gone), "lost: nothing")
	if _, err := os.Stat(w.Node.PodDir(orphantest.Gone)); err != nil {
		t.Errorf("after --dry-run: %v", err)
	}
	w.cleanUp(t, orphantest.Gone)
	recovered("--yes", pods).says(t, 1, "OrphanedPodVolumes pod "+orphantest.Gone+": healed: ", "OrphanedPodVolumes pod "+orphantest.Other+", volume cache: refused because ",
		"1 of 2 faults healed.")
	if _, err := os.Stat(w.Node.PodDir(orphantest.Gone)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	run("scan", pods).says(t, 1, "OrphanedPodVolumes", orphantest.Other)
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the data is gone: %v", err)
	}
}

// TestScanListsAnOrphanOnce: each pod that is gone is one fault, however many volumes it has left, and no volume of it is listed beside.
func TestScanListsAnOrphanOnce(t *testing.T) {
	w := newNode(t, &volumetest.Scene{Scene: kubelettest.New(t), Pod: kubelettest.NewPod()})
	w.strand(t)
	r := callers[0].run(t, w.s.program, "", "scan", "--kubelet-pid="+w.kubelet(t), "--pods="+w.pods, "-o", "json")
	var report scanned
	r.read(t, &report)
	listed := map[string][]string{}
	for _, f := range report.Faults {
		listed[f.Pod.UID] = append(listed[f.Pod.UID], string(f.Code))
	}
	for _, u := range report.Looked.Unproven {
		listed[u.Pod.UID] = append(listed[u.Pod.UID], "not judged: "+u.Point)
	}
	once := []string{string(fault.OrphanedPodVolumes)}
	if diff := cmp.Diff(map[string][]string{orphantest.Gone: once, orphantest.Other: once}, listed); diff != "" {
		t.Errorf("listed by pod (-want +got):\n%s\n%s", diff, r.out)
	}
}
