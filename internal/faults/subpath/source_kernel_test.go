// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// hostPathVolume is a volume of that type; empty: none is given.
func hostPathVolume(name, path string, kind corev1.HostPathType) corev1.Volume {
	source := &corev1.HostPathVolumeSource{Path: path, Type: &kind}
	if kind == "" {
		source.Type = nil
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: source}}
}

// manySources has a pod whose container mounts what is there and what is not, and the directory of the hostPaths.
func manySources(t *testing.T) (s *kubelettest.Scene, pod *corev1.Pod, there string) {
	t.Helper()
	s, pod = kubelettest.New(t), kubelettest.NewPod()
	s.Volume(pod, kubelettest.ConfigMap, "configmap")
	there = filepath.Join(s.Root, "there")
	must(t, os.Mkdir(there, 0o755))
	must(t, os.Symlink("/nowhere", filepath.Join(there, "link")))
	must(t, os.Symlink(there, filepath.Join(s.Root, "way")))
	must(t, os.WriteFile(filepath.Join(there, "file"), nil, 0o600))
	l, err := net.Listen("unix", filepath.Join(there, "listens"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	pod.Spec.Volumes = append(pod.Spec.Volumes, hostPathVolume("there", there+"/", ""), hostPathVolume("gone", there+"/x/", ""),
		hostPathVolume("behind", there+"/link/x", corev1.HostPathFile), hostPathVolume("odd", "x", corev1.HostPathFile),
		hostPathVolume("made", there+"/x", corev1.HostPathDirectoryOrCreate), hostPathVolume("below", there+"/x/y", ""),
		hostPathVolume("wanted", there+"/x", corev1.HostPathDirectory), hostPathVolume("socket", there+"/x", corev1.HostPathSocket),
		hostPathVolume("listens", s.Root+"/way/listens", corev1.HostPathSocket), hostPathVolume("null", "/dev/null", corev1.HostPathCharDev),
		hostPathVolume("blocked", there+"/file/x", corev1.HostPathDirectoryOrCreate), hostPathVolume("far", there+"/a/b", corev1.HostPathFileOrCreate),
		hostPathVolume("file", there+"/file", corev1.HostPathFile), hostPathVolume("other", s.Root+"/way/file", corev1.HostPathDirectoryOrCreate),
		hostPathVolume("dead", there+"/link", ""))
	for _, v := range pod.Spec.Volumes {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name})
	}
	for _, name := range []string{"there", "below"} {
		sub := corev1.VolumeMount{Name: name, MountPath: "/sub", SubPath: "none"}
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, sub)
	}
	return s, pod, there
}

// TestBadSources has that container be in each state.
func TestBadSources(t *testing.T) {
	s, pod, there := manySources(t)
	early := []string{"behind", "wanted", "socket", "blocked", "far", "other"}
	kept := []string{"secret", "projected", "downward", "empty"}
	late := append(append([]string{}, kept...), "behind", "wanted", "socket", "blocked", "other")
	refused := append(append([]string{}, kept...), "behind", "below", "wanted", "socket", "blocked", "other", "dead", "there")
	unmakeable := append(append([]string{}, kept...), "gone", "behind", "made", "below", "wanted", "socket", "blocked", "far", "other", "dead", "there")
	backOff, ran := state(true, "CrashLoopBackOff", "", 0), state(false, "Error", "", 100)
	for name, c := range map[string]struct {
		status *corev1.ContainerStatus
		want   []string
	}{
		"no status":           {nil, early},
		"no state":            {&corev1.ContainerStatus{}, early},
		"being made":          {&corev1.ContainerStatus{State: state(true, "ContainerCreating", "", 0)}, early},
		"before init":         {&corev1.ContainerStatus{State: state(true, "PodInitializing", "", 0)}, early},
		"waits for its image": {&corev1.ContainerStatus{State: state(true, "ImagePullBackOff", "", 0)}, late},
		"has failed":          {&corev1.ContainerStatus{State: backOff, LastTerminationState: ran}, late},
		"runs":                {&corev1.ContainerStatus{State: kubelettest.Running("app").State}, nil},
		"has succeeded":       {&corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}, nil},
		"not configured":      {&corev1.ContainerStatus{State: state(true, "CreateContainerConfigError", "", 0)}, refused},
		"not made":            {&corev1.ContainerStatus{State: state(true, "CreateContainerError", "", 0)}, refused},
		"not started":         {&corev1.ContainerStatus{State: backOff, LastTerminationState: state(false, "StartError", "", 0)}, refused},
		"not made, by name": {&corev1.ContainerStatus{State: state(true, "CreateContainerError",
			`failed to mkdir "`+there+`/x": read-only file system`, 0)}, refused},
		"not made, and read-only": {&corev1.ContainerStatus{State: state(true, "CreateContainerError", "", 0)}, unmakeable},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "not made, and read-only" {
				must(t, systest.BindTree(there, there))
				must(t, systest.RemountBindReadOnly(there))
				defer func() { must(t, systest.UnmountPath(there, true)) }()
			}
			pod := pod.DeepCopy()
			pod.Status.ContainerStatuses = nil
			if c.status != nil {
				c.status.Name = "app"
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{*c.status}
			}
			bad := func() (got []string) {
				findings, err := BadSources(t.Context(), s.Node, pod, "app", nil)
				must(t, err)
				for _, finding := range findings {
					if want := map[bool]fault.Code{true: fault.SourceTypeMismatch, false: fault.MissingBindSource}[finding.Volume == "other"]; finding.Code != want {
						t.Errorf("%s: %s, want %s", finding.Volume, finding.Code, want)
					}
					got = append(got, finding.Volume)
				}
				return got
			}
			if diff := cmp.Diff(c.want, bad()); diff != "" {
				t.Errorf("bad (-want +got):\n%s", diff)
			}
			for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
				if pod.Status.Phase = phase; len(bad()) != 0 {
					t.Errorf("%s: bad %q, want nothing", phase, bad())
				}
			}
			pod.Status.Phase, pod.DeletionTimestamp = corev1.PodRunning, pod.CreationTimestamp.DeepCopy()
			if len(bad()) != 0 {
				t.Errorf("being deleted: bad %q, want nothing", bad())
			}
		})
	}
}

// openCases is the event of an inode that was opened, but not with O_PATH (inotify(7), IN_OPEN).
const openCases = 0x20

// TestNothingIsOpened has a container put a pipe where its subPath leads: to open a device there could reset the node.
func TestNothingIsOpened(t *testing.T) {
	for name, link := range map[string]bool{"a pipe": false, "an absolute link to a pipe": true} {
		t.Run(name, func(t *testing.T) {
			b := newBoundPod(t, kubelettest.EmptyDir, "empty", "entry")
			dir := b.Volume(b.pod, kubelettest.EmptyDir, "empty")
			must(t, os.Remove(filepath.Join(dir, "entry")))
			must(t, exec.Command("mkfifo", filepath.Join(dir, "pipe")).Run())
			if link {
				must(t, os.Symlink(filepath.Join(dir, "pipe"), filepath.Join(dir, "entry")))
			} else {
				must(t, os.Rename(filepath.Join(dir, "pipe"), filepath.Join(dir, "entry")))
			}
			marker := filepath.Join(dir, "marker")
			must(t, os.WriteFile(marker, nil, 0o600))
			w, err := sys.NewWatcher()
			must(t, err)
			defer w.Close()
			fd, err := sys.Lookup(dir)
			must(t, err)
			defer fd.Close()
			_, err = w.Add(fd, openCases)
			must(t, err)
			b.unmount(t, b.inspectPod(t)[0].State)
			_, err = os.ReadFile(marker)
			must(t, err)
			for seen := false; !seen; {
				events, err := w.Read()
				must(t, err)
				for _, e := range events {
					seen = seen || e.Name == "marker"
					if e.Name == "entry" || e.Name == "pipe" {
						t.Errorf("it was opened: %+v", e)
					}
				}
			}
		})
	}
}

// TestLinksInAVolume: they are followed as the kubelet does, also step by step, and never out of the volume.
func TestLinksInAVolume(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/file"), nil, 0o600))
	for name, target := range map[string]string{
		"one": "a/b/file", "two": "one", "a/up": "../a/b/file", "a/far": "b/../../one", "absolute": dir + "/a/b/file", "out": "/etc/hosts",
		"a/climbs": "../../x", "loop": "loop", "way": "a/b",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	file, err := os.Stat(filepath.Join(dir, "a/b/file"))
	must(t, err)
	fd, err := sys.Lookup(dir)
	must(t, err)
	defer fd.Close()
	volume := openedVolume{dir: fd, path: dir}
	each := map[string]func(string) (*sys.FD, error){
		"at once":      volume.openName,
		"step by step": func(name string) (*sys.FD, error) { fd, _, err := volume.openByComponents(name); return fd, err },
	}
	for name, want := range map[string]bool{
		"a/b/file": true, "./a//b/file": true, "one": true, "two": true, "a/up": true, "a/far": true, "absolute": true, "way/file": true,
		"way/../up": true, "out": false, "a/climbs": false, "loop": false, "none": false, "one/x": false, "../x": false,
	} {
		for how, lookup := range each {
			found, err := lookup(name)
			if (err == nil) != want {
				t.Errorf("%s, %s: %v, want it found: %v", name, how, err, want)
			}
			if err != nil {
				continue
			}
			at, err := os.Stat("/proc/self/fd/" + found.String())
			if must(t, err); !os.SameFile(at, file) {
				t.Errorf("%s, %s: another file", name, how)
			}
			found.Close()
		}
	}
}

// TestPathsOfTheKubelet has the kubelet name the path of a claim as one that it misses.
func TestPathsOfTheKubelet(t *testing.T) {
	for name, c := range map[string]struct {
		message func(at string) string
		make    func(t *testing.T, at string)
		other   bool // the claim lies elsewhere
		want    fault.Code
	}{
		"nothing there": {message: func(at string) string { return "stat " + at + ": no such file or directory" }, want: fault.MissingBindSource},
		"nothing there, local": {
			message: func(at string) string { return fmt.Sprintf("path %q does not exist", at) }, want: fault.MissingBindSource,
		},
		"something else there": {
			message: func(at string) string { return "hostPath type check failed: " + at + " is not a directory" }, want: fault.SourceTypeMismatch,
			make: func(t *testing.T, at string) { must(t, os.WriteFile(at, nil, 0o600)) },
		},
		"nothing there, by kind": {
			message: func(at string) string { return "hostPath type check failed: " + at + " is not a socket file" }, want: fault.MissingBindSource,
		},
		"there by now": {
			message: func(at string) string { return "stat " + at + ": no such file or directory" },
			make:    func(t *testing.T, at string) { must(t, os.Mkdir(at, 0o755)) },
		},
		"a link": {
			message: func(at string) string { return "stat " + at + ": no such file or directory" },
			make:    func(t *testing.T, at string) { must(t, os.Symlink("/nowhere", at)) },
		},
		"of no claim": {
			message: func(at string) string { return "stat " + at + ": no such file or directory" }, other: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			at := filepath.Join(t.TempDir(), "pv")
			if c.make != nil {
				c.make(t, at)
			}
			claims := map[string]string{"pv-1": at}
			if c.other {
				claims["pv-1"] = at + "2"
			}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data", SubPath: "x"}}
			pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CreateContainerConfigError", Message: c.message(at)}}}
			found, err := BadSources(t.Context(), s.Node, pod, "app", func(context.Context, *corev1.Pod) map[string]string { return claims })
			must(t, err)
			if len(found) > 1 || (len(found) == 1) != (c.want != "") {
				t.Fatalf("found %+v, want %q", found, c.want)
			}
			if c.want != "" && (found[0].Code != c.want || found[0].Volume != "claim" || !strings.Contains(strings.Join(found[0].Evidence, "\n"), at)) {
				t.Errorf("found %+v, want %q of the claim at %q", found[0], c.want, at)
			}
		})
	}
}
