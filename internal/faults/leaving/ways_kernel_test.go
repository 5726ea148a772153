// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package leaving

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// leavingScene is the directory of a pod that is being deleted, on a node of the test's own.
type leavingScene struct {
	*testing.T
	node *kubelet.Node
}

func newLeavingScene(t *testing.T) leavingScene { return leavingScene{t, newRoot(t, "volumes")} }

// volume is the place of a volume, with a record if that has a text.
func (s leavingScene) volume(plugin, name, record string) (point string) {
	s.Helper()
	point = s.node.VolumePoint(kubelet.Volume{PodUID: uid, Plugin: plugin, Name: name})
	kerneltest.Must(s, os.MkdirAll(point, 0o755))
	if record != "" {
		kerneltest.Must(s, os.WriteFile(kubelet.VolumeRecordPath(point), []byte(record), 0o600))
	}
	return point
}

// mount mounts a file system of its own.
func (s leavingScene) mount(point string) string {
	s.Helper()
	kerneltest.Must(s, sys.NewMount("scene", point, "tmpfs", ""))
	s.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	return point
}

const aRecord = `{"driverName":"s3.csi.example.com","volumeHandle":"h","specVolID":"pvc-1","volumeLifecycleMode":"Persistent"}`

// users are the processes that have something by a mount.
func users(ctx context.Context, m mountinfo.Mount) (all []Process, err error) {
	finder := &devholder.Finder{WithProcesses: true}
	d, err := finder.DeviceOf(m)
	if err != nil {
		return nil, err
	}
	report, err := finder.Find(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, h := range report.Holders {
		if h.Through.ID == m.ID {
			all = append(all, Process{PID: h.PIDs[0], Command: "user", Uses: "its " + string(h.Kind) + " there"})
		}
	}
	return all, nil
}

// look returns the state of the pod at a time after its grace period and the end of its container.
func (s leavingScene) look(at time.Duration, runs ...string) State {
	s.Helper()
	records := runtime{{Name: "app", Exited: len(runs) == 0, Finished: deleted}}
	i := &Inspector{Kubelet: s.node, Runtime: records, Users: users, Now: func() time.Time { return deleted.Add(at) }}
	states, err := i.Inspect(s.Context(), leavingPod())
	if err != nil || len(states) != 1 {
		s.Fatalf("%+v, %v", states, err)
	}
	return states[0]
}

// judge also holds that a bundle has the facts.
func (s leavingScene) judge(state State) []fault.Finding {
	s.Helper()
	if state.Remains == nil {
		s.Fatalf("%+v", state)
	}
	text, err := json.Marshal(state.Remains)
	kerneltest.Must(s, err)
	var again Remains
	kerneltest.Must(s, json.Unmarshal(text, &again))
	findings := again.Judge()
	for _, f := range findings {
		if f.Code != fault.StuckTermination || f.Details.Repair != "" || fault.Known().Advise(f, fault.Caller{}).Impact != fault.ImpactTerminating {
			s.Errorf("finding %+v", f)
		}
	}
	return findings
}

// TestWaysToStay builds each way in which a pod cannot go, with real mounts. Within its time, and while a container runs, none is a fault.
func TestWaysToStay(t *testing.T) {
	for name, c := range map[string]struct {
		build  func(s leavingScene)
		reason fault.Reason
		texts  []string
	}{
		"the record is missing": {func(s leavingScene) { s.mount(s.volume(kubelet.CSIPlugin, "pvc-1", "")) }, fault.ReasonNoRecord,
			[]string{"pvc-1/vol_data.json", "is missing, and without it the kubelet cannot take the volume down"}},
		"the record is empty": {func(s leavingScene) {
			point := s.mount(s.volume(kubelet.CSIPlugin, "pvc-1", ""))
			kerneltest.Must(s, os.WriteFile(kubelet.VolumeRecordPath(point), nil, 0o600))
		}, fault.ReasonNoRecord, []string{"it is empty", "the record is"}},
		"the record is a link": {func(s leavingScene) {
			point := s.mount(s.volume(kubelet.CSIPlugin, "pvc-1", ""))
			kerneltest.Must(s, os.Symlink("/etc/passwd", kubelet.VolumeRecordPath(point)))
		}, fault.ReasonNoRecord, []string{"it is no file of the kubelet's"}},
		"nothing is mounted": {func(s leavingScene) { s.volume(kubelet.CSIPlugin, "pvc-1", aRecord) }, fault.ReasonNotMounted,
			[]string{`CSI driver "s3.csi.example.com", and nothing is mounted`}},
		"files in its place": {func(s leavingScene) {
			kerneltest.Must(s, os.WriteFile(filepath.Join(s.volume(kubelet.CSIPlugin, "pvc-1", aRecord), "orders.db"), []byte("x"), 0o600))
		}, fault.ReasonHasData, []string{"(1, or more)", "not touched"}},
		"a process has a file open": {func(s leavingScene) {
			point := s.mount(s.volume(kubelet.CSIPlugin, "pvc-1", aRecord))
			user := exec.Command("sleep", "1000")
			user.Dir = point
			kerneltest.Must(s, user.Start())
			s.Cleanup(func() { _, _ = user.Process.Kill(), user.Wait() })
		}, fault.ReasonInUse, []string{"process user[", "its working directory there"}},
		"another mount hides it": {func(s leavingScene) {
			s.mount(s.volume("kubernetes.io/secret", "s", ""))
			s.mount(s.node.PodsDir())
		}, fault.ReasonHidden, []string{"no unmount reaches this one", `hidden by mount`}},
		"no cause": {func(s leavingScene) { s.mount(s.volume("kubernetes.io/secret", "s", "")) }, fault.ReasonNotTakenDown,
			[]string{"no cause was found"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLeavingScene(t)
			c.build(s)
			for after, state := range map[string]State{"within its time": s.look(29 * time.Second), "while it runs": s.look(time.Hour, "app")} {
				if state.Remains != nil {
					t.Errorf("%s: %+v", after, state)
				}
			}
			findings := s.judge(s.look(time.Hour))
			if len(findings) != 1 || findings[0].Details.Reason != c.reason {
				t.Fatalf("findings %+v", findings)
			}
			evidence := strings.Join(findings[0].Evidence, "\n")
			for _, want := range c.texts {
				if !strings.Contains(evidence, want) {
					t.Errorf("%q is not in %s", want, evidence)
				}
			}
		})
	}
}

// TestMountInsideAVolume is left to those who judge volumes, and is no pod without a cause.
func TestMountInsideAVolume(t *testing.T) {
	s := newLeavingScene(t)
	at := filepath.Join(s.volume("kubernetes.io/empty-dir", "w", ""), "log")
	kerneltest.Must(t, os.Mkdir(at, 0o755))
	s.mount(at)
	if findings := s.judge(s.look(time.Hour)); len(findings) != 0 {
		t.Errorf("findings %+v", findings)
	}
}

// awaitTaken waits until the server of a FUSE file system has taken a request that it leaves unanswered. Until then, a signal ends the process
// that waits for it.
func awaitTaken(t *testing.T, dir string) {
	t.Helper()
	control, err := fuse.Open()
	kerneltest.Must(t, err)
	defer control.Close()
	root, err := sys.OpenRoot(dir)
	kerneltest.Must(t, err)
	defer root.Close()
	at, err := root.Stat(0)
	kerneltest.Must(t, err)
	kerneltest.Await(t, "a request", func() bool {
		c, err := control.Connection(at.Minor)
		return err == nil && c.Waiting > 0
	})
	_, err = root.FileSystemReadOnly() // the server takes requests in their order
	kerneltest.Must(t, err)
}

// TestKilledProcessThatWaits has a process of the pod wait for a file system that never answers. SIGKILL does not end it.
func TestKilledProcessThatWaits(t *testing.T) {
	s := newLeavingScene(t)
	s.mount(s.volume("kubernetes.io/secret", "s", ""))
	dir := t.TempDir()
	server := kerneltest.FUSE(t, dir)
	group := kerneltest.ControlGroup(t, "pod"+uid)
	app := exec.Command("stat", filepath.Join(dir, "hang"))
	kerneltest.Must(t, app.Start())
	t.Cleanup(func() {
		server.End()
		_ = app.Wait() // it was killed
	})
	kerneltest.JoinControlGroup(t, group, app.Process.Pid)
	if state := s.look(time.Hour); state.Remains != nil || !strings.Contains(state.Text, "it still runs") {
		t.Errorf("before it is killed: %+v", state)
	}
	awaitTaken(t, dir)
	kerneltest.Must(t, app.Process.Kill())
	kerneltest.Await(t, "a process that was killed and waits", func() bool {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(app.Process.Pid) + "/status")
		return err == nil && killedInKernel.Match(status)
	})
	findings := s.judge(s.look(time.Hour))
	if len(findings) != 1 || findings[0].Details.Reason != fault.ReasonProcessWaits || findings[0].Details.HeldBy.PID != app.Process.Pid ||
		!strings.Contains(findings[0].Evidence[0], "was killed and waits in the kernel at ") {
		t.Errorf("findings %+v", findings)
	}
}
