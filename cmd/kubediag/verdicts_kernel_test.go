// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/debian"
)

// verdicts are the answers of the front doors about one node, and about one mount of it.
type verdicts struct {
	scan, brief, json, probe, recover *result
	report                            scanned
}

// readVerdicts asks each front door. more are flags of scan and recover.
func readVerdicts(t *testing.T, program, root, point string, more ...string) *verdicts {
	t.Helper()
	run := func(args ...string) *result { return callers[0].run(t, program, "", args...) }
	of := append([]string{"--kubelet-root=" + root}, more...)
	v := &verdicts{
		scan: run(append([]string{"scan"}, of...)...), brief: run(append([]string{"scan", "--brief"}, of...)...),
		json: run(append([]string{"scan", "-o", "json"}, of...)...), probe: run("probe", point),
		recover: run(append([]string{"recover", "--dry-run"}, of...)...),
	}
	v.json.read(t, &v.report)
	return v
}

// checkFault checks that each front door names the fault, and that none plans anything.
func (v *verdicts) checkFault(t *testing.T, code fault.Code) {
	t.Helper()
	for name, r := range map[string]*result{"scan": v.scan, "brief": v.brief, "json": v.json, "probe": v.probe} {
		if r.status != 1 || !strings.Contains(r.out, string(code)) {
			t.Errorf("%s: %s, want status 1 and %s", name, r, code)
		}
	}
	v.checkNoPlan(t)
	for _, f := range v.report.Faults {
		if f.Code != code {
			t.Errorf("fault %s, want %s alone", f.Code, code)
		}
	}
	if v.report.Verdict.Clean || len(v.report.Faults) == 0 {
		t.Errorf("verdict %+v", v.report)
	}
}

// checkNoPlan checks that recover finds a fault and plans nothing: each planned action has a line that begins with "would".
func (v *verdicts) checkNoPlan(t *testing.T) {
	t.Helper()
	if v.recover.status != 1 || strings.Contains(v.recover.out, "   would ") {
		t.Errorf("recover: %s, want status 1 and no plan", v.recover)
	}
}

// checkUnjudged checks that scan calls the node neither broken nor clean, and gives the reason.
func (v *verdicts) checkUnjudged(t *testing.T, point, why string) {
	t.Helper()
	for name, r := range map[string]*result{"scan": v.scan, "brief": v.brief, "json": v.json} {
		if r.status != 2 || strings.Contains(r.out, "✓") {
			t.Errorf("%s: %s, want status 2 and no check mark", name, r)
		}
	}
	places := v.report.Looked.Unproven
	if v.report.Verdict.Clean || v.report.Verdict.NotJudged != 1 || len(places) != 1 || places[0].Point != point || !strings.Contains(places[0].Why, why) {
		t.Errorf("verdict %+v, want %q at %q", v.report, why, point)
	}
	if !strings.Contains(v.brief.out, "no fault seen, but 1 place could not be judged") || !strings.Contains(v.scan.out, why) {
		t.Errorf("brief %s, scan %s, want %q", v.brief, v.scan, why)
	}
}

// checkClean checks that nothing is wrong, and that all was judged.
func (v *verdicts) checkClean(t *testing.T) {
	t.Helper()
	if v.scan.status != 0 || !strings.Contains(v.scan.out, "✓") || v.brief.status != 0 || v.probe.status != 0 || !v.report.Verdict.Clean {
		t.Errorf("scan %s, brief %s, probe %s, want no fault", v.scan, v.brief, v.probe)
	}
}

// TestVolumeThatDeniesAccess: its root answers root, too, with EACCES.
func TestVolumeThatDeniesAccess(t *testing.T) {
	s, program := volumetest.New(t), program(t)
	s.Fail(syscall.EACCES)
	readVerdicts(t, program, s.Root, s.Point).checkUnjudged(t, s.Point, "access to it is denied")
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	callers[0].run(t, program, "", "bundle", "--kubelet-root="+s.Root, "-o", bundle)
	if r := callers[0].run(t, program, "", "scan", "--brief", "--from="+bundle); r.status != 2 || !strings.Contains(r.out, "not be judged") {
		t.Errorf("scan of a bundle: %s, want status 2", r)
	}
}

// disk is a volume on ext4 on a loop device, in a pod whose spec is in a file.
type disk struct {
	*kubelettest.Scene
	pod                          *corev1.Pod
	program, device, point, pods string
}

// newDisk mounts the volume "data" of plugin at the kubelet's place for it. No plugin: the pod has it as a hostPath.
func newDisk(t *testing.T, plugin, options string) *disk {
	t.Helper()
	d := &disk{Scene: kubelettest.New(t), pod: kubelettest.NewPod(), program: program(t)}
	d.device = newExt4(t)
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	d.point = d.Node.VolumePoint(kubelet.Volume{PodUID: string(d.pod.UID), Plugin: plugin, Name: "data"})
	if plugin == "" {
		d.point = filepath.Join(t.TempDir(), "data")
		source = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: d.point}}
	}
	must(t, os.MkdirAll(d.point, 0o755))
	must(t, os.MkdirAll(d.Node.PodDir(string(d.pod.UID)), 0o755))
	tool(t, "mount", "-o", options, d.device, d.point)
	t.Cleanup(func() { _ = systest.UnmountPath(d.point, true) })
	d.pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
	d.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	d.pods = filepath.Join(t.TempDir(), "pods.json")
	return d
}

// verdicts are those with the pod's spec as it is now.
func (d *disk) verdicts(t *testing.T) *verdicts {
	t.Helper()
	list := corev1.PodList{Items: []corev1.Pod{*d.pod}}
	list.APIVersion, list.Kind = "v1", "PodList"
	text, err := json.Marshal(list)
	must(t, errors.Join(err, os.WriteFile(d.pods, text, 0o600)))
	return readVerdicts(t, d.program, d.Root, d.point, "--pods="+d.pods)
}

// checkUnjudged checks that the volume is called neither right nor wrong, for a reason.
func (d *disk) checkUnjudged(t *testing.T, why string) {
	t.Helper()
	v := d.verdicts(t)
	v.checkUnjudged(t, d.point, why)
	if v.probe.status != 2 {
		t.Errorf("probe: %s, want status 2", v.probe)
	}
}

// TestFileSystemsOnDisks: those that fail are seen, with each plugin and as a hostPath.
func TestFileSystemsOnDisks(t *testing.T) {
	const local = "kubernetes.io/local-volume"
	for _, plugin := range []string{kubelet.CSIPlugin, local, "example.com/flex", ""} {
		t.Run("plugin "+plugin, func(t *testing.T) {
			d := newDisk(t, plugin, "errors=remount-ro")
			d.verdicts(t).checkClean(t)
			disturbed(t, nil, d.device)
			d.checkUnjudged(t, "read-only")
			d.pod.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
			if v := d.verdicts(t); v.scan.status != 0 || !v.report.Verdict.Clean {
				t.Errorf("a pod that only reads: %s", v.scan)
			}
			d.pod.Spec.Containers[0].VolumeMounts[0].ReadOnly = false
			must(t, systest.ShutDown(d.point))
			d.verdicts(t).checkFault(t, fault.VolumeIOError)
		})
	}
	t.Run("the kubelet's own", testKubeletsDisk)
	t.Run("suspended", testSuspended)
	t.Run("errors alone", testErrors)
	t.Run("no path", testNoPath)
	t.Run("mounted read-only after an error", func(t *testing.T) {
		d := newDisk(t, local, "errors=remount-ro")
		disturbed(t, nil, d.device)
		must(t, systest.RemountBindReadOnly(d.point))
		d.checkUnjudged(t, "has noted errors (1 since")
	})
	t.Run("XFS that is shut down", testXFS)
	t.Run("read-only on purpose", func(t *testing.T) { newDisk(t, local, "ro").verdicts(t).checkClean(t) })
	t.Run("frozen", func(t *testing.T) {
		d := newDisk(t, local, "rw")
		tool(t, "fsfreeze", "-f", d.point)
		thaw := sync.OnceFunc(func() { tool(t, "fsfreeze", "-u", d.point) })
		t.Cleanup(thaw)
		d.checkUnjudged(t, "a write to it does not end")
		thaw()
		d.verdicts(t).checkClean(t)
	})
}

// testKubeletsDisk has the file system fail that the directories of pods are on: an emptyDir there is no mount of its own.
func testKubeletsDisk(t *testing.T) {
	d := newDisk(t, "", "errors=remount-ro")
	must(t, systest.UnmountPath(d.point, false))
	d.point = d.Node.PodsDir() // which newDisk unmounts
	tool(t, "mount", "-o", "errors=remount-ro", d.device, d.point)
	d.pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	must(t, os.MkdirAll(d.Node.VolumePoint(kubelet.Volume{PodUID: string(d.pod.UID), Plugin: kubelettest.EmptyDir, Name: "data"}), 0o755))
	d.verdicts(t).checkClean(t)
	disturbed(t, nil, d.device)
	d.verdicts(t).checkUnjudged(t, d.point, "each volume that is no mount: ")
}

// testXFS shuts an XFS down, which its kernel does by itself after an error of its log. Each request fails from then on.
func testXFS(t *testing.T) {
	if types, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(types), "\txfs\n") {
		t.Attr(kerneltest.Lacks, "CONFIG_XFS_FS")
		t.Skip("kernel lacks CONFIG_XFS_FS")
	}
	must(t, debian.Install(t.Context(), "mkfs.xfs"))
	d := newDisk(t, "kubernetes.io/local-volume", "rw")
	must(t, systest.UnmountPath(d.point, false))
	device := attach(t, newImage(t, 320<<20))
	tool(t, "mkfs.xfs", "-q", device)
	tool(t, "mount", device, d.point)
	d.verdicts(t).checkClean(t)
	must(t, systest.ShutDown(d.point))
	d.verdicts(t).checkFault(t, fault.VolumeIOError)
	must(t, systest.UnmountPath(d.point, true)) // before the loop device goes
}

// mapped is a volume on a mapped device of one part: the loop device of the volume.
type mapped struct {
	*disk
	name, device string // to dmsetup and to the kernel
}

// newMapped mounts it. Its file system is in memory then.
func newMapped(t *testing.T, target string) *mapped {
	t.Helper()
	if misc, err := os.ReadFile("/proc/misc"); err != nil || !strings.Contains(string(misc), "device-mapper") {
		t.Attr(kerneltest.Lacks, "CONFIG_BLK_DEV_DM")
		t.Skip("kernel lacks CONFIG_BLK_DEV_DM")
	}
	m := &mapped{disk: newDisk(t, "kubernetes.io/local-volume", "rw"), name: fmt.Sprintf("kubediag-verdicts-%d", os.Getpid())}
	must(t, systest.UnmountPath(m.point, false))
	tool(t, "dmsetup", "create", "--noudevsync", m.name, "--table", m.table(target))
	m.device = tool(t, "dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", m.name)
	t.Cleanup(func() {
		tool(t, "dmsetup", "resume", "--noudevsync", m.name)
		_ = systest.UnmountPath(m.point, false)
		tool(t, "dmsetup", "remove", "--noudevsync", "--retry", m.name)
	})
	tool(t, "mount", "/dev/"+m.device, m.point)
	tool(t, "sync", "-f", m.point)
	m.verdicts(t)
	return m
}

// table is that of the device with a target, in which DEVICE stands for the loop device.
func (m *mapped) table(target string) string {
	return fmt.Sprintf("0 %d %s", 16<<20/512, strings.ReplaceAll(target, "DEVICE", m.disk.device))
}

// testSuspended suspends the mapped device of a volume and does not freeze its file system. Reads from memory still succeed.
func testSuspended(t *testing.T) {
	m := newMapped(t, "linear DEVICE 0")
	tool(t, "dmsetup", "suspend", "--nolockfs", "--noudevsync", m.name)
	m.checkUnjudged(t, fmt.Sprintf("%q is suspended", m.device))
}

// testErrors has the mapped device of a volume answer with errors alone, as dmsetup wipe_table and LVM do for a disk that is gone.
func testErrors(t *testing.T) {
	m := newMapped(t, "linear DEVICE 0")
	tool(t, "dmsetup", "suspend", "--noudevsync", m.name)
	tool(t, "dmsetup", "load", "--table", m.table("error"), m.name)
	tool(t, "dmsetup", "resume", "--noudevsync", m.name)
	m.checkUnjudged(t, fmt.Sprintf(`the mapped device %q answers each request with an error`, m.device))
	tool(t, "dmsetup", "suspend", "--nolockfs", "--noudevsync", m.name)
	tool(t, "dmsetup", "load", "--table", m.table("linear DEVICE 0"), m.name)
}

// testNoPath takes the only path of a multipath device away.
func testNoPath(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "modprobe", "-a", "dm_multipath", "dm_round_robin").CombinedOutput(); err != nil {
		t.Attr(kerneltest.Lacks, "CONFIG_DM_MULTIPATH")
		t.Skipf("kernel lacks CONFIG_DM_MULTIPATH: %s", out)
	}
	m := newMapped(t, "multipath 0 0 1 1 round-robin 0 1 0 DEVICE")
	tool(t, "dmsetup", "message", m.name, "0", "fail_path "+m.disk.device)
	m.checkUnjudged(t, fmt.Sprintf(`the mapped device %q has no path that works`, m.device))
	tool(t, "dmsetup", "message", m.name, "0", "reinstate_path "+m.disk.device)
}

// TestVolumesOnTheNodesDisk: a pod has a plain directory in the place of a volume that is not mounted.
func TestVolumesOnTheNodesDisk(t *testing.T) {
	s, program := kubelettest.NewOnDisk(t), program(t)
	pod := kubelettest.NewPod()
	point := s.Node.VolumePoint(kubelet.Volume{PodUID: string(pod.UID), Plugin: kubelet.CSIPlugin, Name: "pvc-1"})
	staging := s.Node.StagingPoints(volumetest.Driver, volumetest.Handle, "pvc-1")[0]
	must(t, errors.Join(os.MkdirAll(point, 0o755), os.MkdirAll(staging, 0o755)))
	record, err := json.Marshal(kubelet.VolumeRecord{Driver: volumetest.Driver, Handle: volumetest.Handle, PersistentVolume: "pvc-1"})
	must(t, errors.Join(err, os.WriteFile(kubelet.VolumeRecordPath(point), record, 0o600)))
	scan := func() *verdicts { return readVerdicts(t, program, s.Root, s.Root) }
	scan().checkClean(t) // a pod that waits
	data := filepath.Join(t.TempDir(), "data")
	must(t, errors.Join(os.Mkdir(data, 0o755), sys.BindMount(point, data)))
	container := kerneltest.Start(t, "copy")
	must(t, systest.UnmountPath(data, false))
	scan().checkUnjudged(t, point, "does not get into the volume")
	container.End()
	must(t, os.WriteFile(filepath.Join(staging, "written"), nil, 0o600))
	must(t, sys.BindMount(staging, point))
	t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	v := scan()
	if v.scan.status != 1 || !strings.Contains(v.json.out, string(fault.DeletedVolumeSource)) || !strings.Contains(v.json.out, "written") {
		t.Errorf("a bind of the staging path that nothing is mounted at: %s", v.json)
	}
}

// TestSubPathsThatShowAnotherDirectory: a container has the root of the volume, or a directory above, where the pod's spec asks for a
// subPath.
func TestSubPathsThatShowAnotherDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		prepare         func(dir string) error
		subPath, source string
		innocent        bool
		unknown         string // why it is not judged
	}{
		"the volume, and a directory":  {prepare: func(dir string) error { return os.Mkdir(dir, 0o755) }},
		"the volume, and nothing":      {prepare: func(string) error { return nil }},
		"the volume, and a link to it": {prepare: func(dir string) error { return os.Symlink(".", dir) }, innocent: true},
		"a directory above":            {prepare: func(dir string) error { return os.MkdirAll(dir+"/deep", 0o755) }, subPath: "sub/deep", source: "sub"},
		"the right one":                {prepare: func(dir string) error { return os.MkdirAll(dir+"/deep", 0o755) }, subPath: "sub/deep", source: "sub/deep", innocent: true},
		"a link to the directory above": {
			prepare: func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Symlink("../sub", dir+"/deep")) },
			subPath: "sub/deep", source: "sub", innocent: true,
		},
		"a link that leads out of the volume": {
			prepare: func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Symlink("../../sub", dir+"/deep")) },
			subPath: "sub/deep", source: "sub", unknown: "what that names now is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, kubelet.CSIPlugin, "rw")
			d.pod.Spec.Containers[0].VolumeMounts[0].SubPath = cmp.Or(c.subPath, "sub")
			must(t, c.prepare(filepath.Join(d.point, "sub")))
			point := d.Point(d.pod, "data", "app", 0)
			d.Stack(filepath.Join(d.point, c.source), point)
			v := d.verdicts(t)
			switch {
			case c.innocent:
				v.checkClean(t)
				return
			case c.unknown != "":
				v.checkUnjudged(t, point, c.unknown)
				return
			}
			found := v.report.Faults
			if v.scan.status != 1 || len(found) != 1 || found[0].Code != fault.WrongSubPath || found[0].Mount.Point != point {
				t.Errorf("scan %s, %+v", v.scan, found)
			}
			v.checkNoPlan(t)
		})
	}
}
