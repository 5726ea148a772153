// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// attackedPods is a repairScene with what must not be touched: the pod of a neighbour with a healthy bind and one that is
// stale indeed, and a container that has copies of all mounts in a namespace of its own. The diagnoser looks at the same
// pods, and must find the binds that the recoverer plans to unmount.
type attackedPods struct {
	*repairScene
	neighbour      *corev1.Pod
	healthy, stale string // the neighbour's binds
	container      *kerneltest.Actor
}

func newAttackedPods(t *testing.T) *attackedPods {
	t.Helper()
	s := &attackedPods{repairScene: newRepairScene(t), neighbour: kubelettest.NewPod()}
	s.neighbour.UID, s.neighbour.Name = "c0ffee00-0000-4000-8000-000000000001", "neighbour"
	version := s.Update(s.neighbour, kubelettest.ConfigMap, "configmap", map[string]string{"key": "", "lost": ""})
	s.healthy, s.stale = s.Point(s.neighbour, "configmap", "app", 0), s.Point(s.neighbour, "configmap", "sidecar", 0)
	s.Bind(filepath.Join(version, "key"), s.healthy)
	s.Bind(filepath.Join(version, "lost"), s.stale)
	must(t, os.Remove(filepath.Join(version, "lost")))
	s.container = kerneltest.Start(t, "hold")
	return s
}

// runDiagnoser runs the diagnoser with these values.
func (s *attackedPods) runDiagnoser(t *testing.T, values map[string]string) (processor.Result, error) {
	t.Helper()
	r := s.request
	r.Values = values
	return (&Diagnoser{Pods: s.pods, Kubelet: s.Node}).Run(t.Context(), r)
}

// diagnose is the result of the diagnoser, where the pod is one that can be looked at. It is silent about the neighbour.
func (s *attackedPods) diagnose(t *testing.T, values map[string]string) processor.Result {
	t.Helper()
	result, err := s.runDiagnoser(t, values)
	must(t, err)
	printable(t, result.Findings, result.NotApplicable)
	if text := fmt.Sprintf("%+v", result); strings.Contains(text, string(s.neighbour.UID)) {
		t.Errorf("the result speaks of the neighbour: %s", text)
	}
	return result
}

// finds checks that the diagnoser finds exactly the stale binds at these points.
func finds(t *testing.T, result processor.Result, want []string) {
	t.Helper()
	var got []string
	if text := result.Values[keyDestinationPaths]; text != "" {
		must(t, json.Unmarshal([]byte(text), &got))
	}
	if diff := cmp.Diff(want, got); diff != "" || (len(want) == 0) != (result.NotApplicable != "") {
		t.Errorf("diagnosis %+v (-want +got):\n%s", result, diff)
	}
}

// printable checks that evidence and a reason are short and printable.
func printable(t *testing.T, findings []fault.Finding, reason string) {
	t.Helper()
	lines := []string{reason}
	for _, f := range findings {
		lines = append(lines, f.Evidence...)
	}
	for _, line := range lines {
		if len(line) > 4096 || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("text of %d bytes: %.200q", len(line), line)
		}
	}
}

// printablePlan is the plan, of evidence that is short and printable.
func (s *attackedPods) printablePlan(t *testing.T) repair.Part {
	t.Helper()
	p := s.plan(t)
	printable(t, p.Findings, "")
	return p
}

// lies are texts that want something else to be unmounted.
func (s *attackedPods) lies() map[string]string {
	lies := map[string]string{
		"nothing":      "",
		"newlines":     "no such file or directory\n1 1 1:1 /x//deleted " + s.healthy + " rw - ext4 /dev/vda rw\n",
		"NULs":         "mounting \"" + s.healthy + "\x00//deleted\" to rootfs\x00: no such file or directory",
		"1 MiB":        "mounting volume-subpaths " + strings.Repeat(s.healthy+"//deleted ", 1<<20/len(s.healthy)) + noEntry,
		"not UTF-8":    "mounting \"" + s.healthy + "\xff\xfe//deleted \" volume-subpaths" + noEntry,
		"percent":      "mounting %s%n%!x(" + s.healthy + ") volume-subpaths" + noEntry,
		"mountinfo":    "99 1 254:1 /x//deleted " + s.healthy + " rw,relatime shared:1 - ext4 /dev/vda1 rw",
		"JSON":         `{"mount":{"point":"` + s.healthy + `"},"target":"` + s.healthy + `"}`,
		"another kind": "mounting " + s.healthy + " volume-subpaths to rootfs: not a directory",
	}
	for what, target := range s.targets() {
		for runtime, message := range wordings(target) {
			lies[what+" by "+runtime] = message
		}
		lies[what] = target
	}
	return lies
}

// noEntry is how a message ends that reports a source that is gone.
const noEntry = ": no such file or directory"

// targets are what a lie may name.
func (s *attackedPods) targets() map[string]string {
	return map[string]string{
		"another pod's healthy bind": s.healthy,
		"another pod's stale bind":   s.stale,
		"the container's own bind":   fmt.Sprintf("/proc/%d/root%s", s.container.PID, s.point),
		"through process 1":          "/proc/1/root" + s.healthy,
		"the root":                   "/",
		"the mark alone":             "//deleted",
		"a healthy bind and a mark":  s.healthy + "//deleted",
		"an option":                  "-a",
		"a long option":              "--all-targets",
		"an option with a value":     "-o",
		"the kubelet's root":         s.Root,
		"all pods":                   filepath.Join(s.Root, "pods"),
		"the volume":                 s.Volume(s.pod, kubelettest.ConfigMap, "configmap"),
		"climbing":                   s.point + "/../../../../../" + string(s.neighbour.UID) + "/volume-subpaths/configmap/app/0",
	}
}

// wordings are how runtimes say that target could not be mounted.
func wordings(target string) map[string]string {
	return map[string]string{
		"runc of 2018": `container_linux.go:348: starting container process caused "process_linux.go:402: container init caused ` +
			`\"rootfs_linux.go:58: mounting \\\"` + target + `\\\" to rootfs \\\"/b/rootfs\\\" at \\\"/b/rootfs/x\\\" caused ` +
			`\\\"no such file or directory\\\"\"": unknown`,
		"runc": `runc create failed: unable to start container process: error during container init: error mounting "` + target +
			`" to rootfs at "/x": mount src=` + target + `, dst=/x, dstFd=/proc/thread-self/fd/11, flags=MS_BIND|MS_REC` + noEntry,
		"crun":  "mount `" + target + "` to `x`: No such file or directory",
		"CRI-O": "container create failed: mount `" + target + "` to `/x`: No such file or directory",
		"the kubelet": `failed to prepare subPath for volumeMount "x" of container "app": error checking path ` + target +
			` for mount: lstat ` + target + noEntry,
		"mount(8)": "mount: " + target + ": mount(2) system call failed: No such file or directory.",
	}
}

// TestMessagesDecideNothing has a lie in every place of a pod that a message can be in, and for the diagnoser in every value.
func TestMessagesDecideNothing(t *testing.T) {
	for name, stale := range map[string]bool{"of a pod with stale binds": true, "of a healthy pod": false} {
		t.Run(name, func(t *testing.T) {
			s := newAttackedPods(t)
			if stale {
				s.renew()
			}
			s.say("")
			before, truth, diagnosis := s.tables(t), s.printablePlan(t), s.diagnose(t, nil)
			finds(t, diagnosis, points(truth))
			for name, lie := range s.lies() {
				s.say(lie)
				if diff := cmp.Diff(truth, s.printablePlan(t)); diff != "" {
					t.Errorf("plan with the lie %q (-truth +got):\n%s", name, diff)
				}
				values := valueForEveryKey(lie)
				values[paramBringForward], values[ParamWaitSeconds] = lie, lie
				result := s.diagnose(t, values)
				if !stale { // reasons say what messages point at; what comes first is what was seen
					diagnosis.NotApplicable, _, _ = strings.Cut(diagnosis.NotApplicable, ";")
					result.NotApplicable, _, _ = strings.Cut(result.NotApplicable, ";")
				}
				if diff := cmp.Diff(diagnosis, result); diff != "" {
					t.Errorf("diagnosis with the lie %q (-truth +got):\n%s", name, diff)
				}
			}
			s.holds(t, before)
			if !stale {
				if len(truth.Actions) != 0 {
					t.Errorf("plan %q for a healthy pod", processortest.Targets(truth))
				}
				return
			}
			s.apply(t, truth)
			s.holds(t, before, s.repairs(truth, "configmap")...)
		})
	}
}

// say has the message in state.waiting, lastState.terminated and state.terminated, and wherever else a pod has room.
func (s *attackedPods) say(message string) {
	app, sidecar := kubelettest.Failing("app", message), kubelettest.Failing("sidecar", message)
	app.State.Waiting.Message = message
	sidecar.State = corev1.ContainerState{Terminated: sidecar.LastTerminationState.Terminated.DeepCopy()}
	s.pod.Status.Message, s.pod.Status.Reason = message, message
	s.pod.Labels, s.pod.Annotations = map[string]string{"mount": message}, map[string]string{"volume-subpaths": message}
	s.set(app, sidecar)
}

// keys are all keys that parameters and results have, of the diagnoser and of the recoverer, and some that others may
// hope for.
var keys = []string{
	keyDiagnoserResult, keyBugLink, keySourcePath, keySourcePaths, keyDestinationPath, keyDestinationPaths,
	keyRecoverResult, keyRecoverResults, KeyRecoverRunningAfter,
	"param.recover.kubernetes.subpath_remount.target", "param.recover.kubernetes.subpath_remount.mount_point",
	"param.diagnoser.kubernetes.subpath_remount.target", "target", "mount", repair.StateNote, "collector.system.mountinfo", "collector.kubernetes.pod.detail", "node.mountinfo", "kubelet.root",
	processor.KeyPodNamespace, processor.KeyPodName, processor.KeyContainer, processor.KeyNode, processor.KeyDiagnosisUID, "pod.uid",
}

// valueForEveryKey has a lie for every key.
func valueForEveryKey(lie string) map[string]string {
	values := map[string]string{}
	for _, key := range keys {
		values[key] = lie
		if strings.HasSuffix(key, "paths") || strings.HasSuffix(key, "results") {
			values[key] = fmt.Sprintf("[%q]", lie)
		}
	}
	return values
}

// TestForgedValuesChangeNothing has every parameter and every result of an earlier operation name what is not to be
// touched, from the plan to the proof.
func TestForgedValuesChangeNothing(t *testing.T) {
	s := newAttackedPods(t)
	s.renew()
	before, truth := s.tables(t), s.plan(t)
	forge := func(lie string) {
		s.request.Values = valueForEveryKey(lie)
		s.request.Values["collector.kubernetes.pod.detail"] = fmt.Sprintf(`{"metadata":{"uid":%q}}`, s.neighbour.UID)
	}
	for name, lie := range s.lies() {
		forge(lie)
		if diff := cmp.Diff(truth, s.plan(t)); diff != "" {
			t.Errorf("plan with the lie %q (-truth +got):\n%s", name, diff)
		}
	}
	s.holds(t, before)
	forge(s.healthy)
	s.apply(t, truth)
	s.holds(t, before, s.repairs(truth, "configmap")...)
	result, err := processortest.Prove(t.Context(), s.healer, s.request, truth)
	must(t, err)
	if got := result.Values[keyRecoverResult]; got != "Succeesfully umount "+s.point+" on host" {
		t.Errorf("result %q", got)
	}
}

// TestBadParametersAreNamed: each method that reads parameters says which is bad, and nothing is touched.
func TestBadParametersAreNamed(t *testing.T) {
	s := newAttackedPods(t)
	s.renew()
	before, plan := s.tables(t), s.plan(t)
	for _, c := range []struct{ key, value string }{
		{paramBringForward, "/"}, {paramBringForward, "TRUE"}, {paramBringForward, "true\n"}, {paramBringForward, "false\x00"},
		{paramBringForward, s.healthy}, {ParamWaitSeconds, "-a"}, {ParamWaitSeconds, "0x10"}, {ParamWaitSeconds, "1e3"},
		{ParamWaitSeconds, " 1"}, {ParamWaitSeconds, "3601"}, {ParamWaitSeconds, "65536"}, {ParamWaitSeconds, "NaN"},
		{ParamWaitSeconds, "1\x00"}, {ParamWaitSeconds, s.healthy},
	} {
		s.request.Values = map[string]string{c.key: c.value}
		_, planErr := s.healer.Plan(t.Context(), s.request)
		_, verifyErr := processortest.Prove(t.Context(), s.healer, s.request, plan)
		for what, err := range map[string]error{"plan": planErr, "verify": verifyErr} {
			named := err != nil && strings.Contains(err.Error(), c.key) && strings.Contains(err.Error(), fmt.Sprintf("%q", c.value))
			if !processor.IsStalled(err) || !named {
				t.Errorf("%s with %s=%q: error %v, want a stalled one that names both", what, c.key, c.value, err)
			}
		}
	}
	s.holds(t, before)
}

// confusion is a pod that is to be taken for another.
type confusion struct {
	change func(t *testing.T, s *attackedPods)
	want   func(s *attackedPods) []string // what is unmounted; nil: what would be without the change
	reason string                         // of a plan without actions
	err    bool                           // an error will do as well
}

// withUID is a pod with a UID that no API server gives.
func withUID(uid func(s *attackedPods) string) confusion {
	return confusion{
		change: func(_ *testing.T, s *attackedPods) { s.pod.UID = types.UID(uid(s)) },
		want:   nothing, reason: "no stale subPath mount", err: true,
	}
}

func nothing(*attackedPods) []string { return nil }

// rename gives the pod one container and one volume of these names, with a healthy bind at index 0 and a stale one at
// 1.
func (s *attackedPods) rename(t *testing.T, volume, container string) {
	t.Helper()
	s.pod.Spec.Volumes[0].Name = volume
	mounts := []corev1.VolumeMount{{Name: volume, MountPath: "/x", SubPath: "key"}, {Name: volume, MountPath: "/y", SubPath: "key"}}
	s.pod.Spec.Containers = []corev1.Container{{Name: container, VolumeMounts: mounts}}
	for _, index := range []int{1, 0} {
		version := s.Update(s.pod, kubelettest.ConfigMap, volume, map[string]string{"key": ""})
		s.Bind(filepath.Join(version, "key"), s.Point(s.pod, volume, container, index))
	}
}

// points lists the points that a plan acts on.
func points(p repair.Part) (all []string) {
	for _, a := range p.Actions {
		all = append(all, a.Target)
	}
	return all
}

// TestConfusingPods: only the pod's UID, and the whole of its spec, say which binds are its own.
func TestConfusingPods(t *testing.T) {
	for name, c := range map[string]confusion{
		"a pod named like another's UID": {change: func(_ *testing.T, s *attackedPods) {
			s.pod.Name, s.pod.GenerateName = string(s.neighbour.UID), string(s.neighbour.UID)
		}},
		"another's UID for a label": {change: func(_ *testing.T, s *attackedPods) {
			uid := string(s.neighbour.UID)
			s.pod.Labels = map[string]string{"uid": uid, "io.kubernetes.pod.uid": uid}
			s.pod.Annotations = map[string]string{"uid": uid, "kubernetes.io/config.hash": uid, "volume-subpaths": s.stale}
		}},
		"another's UID as owner": {change: func(_ *testing.T, s *attackedPods) {
			s.pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.neighbour.Name, UID: s.neighbour.UID}}
		}},
		"the mirror of a static pod, with another's directory": {
			change: func(_ *testing.T, s *attackedPods) {
				uid := string(s.neighbour.UID)
				s.pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid, "kubernetes.io/config.hash": uid}
			},
			want: nothing, reason: "static pod",
		},
		"a volume called deleted, a container called 0": {change: func(t *testing.T, s *attackedPods) {
			s.rename(t, "deleted", "0")
		}, want: func(s *attackedPods) []string { return []string{s.Point(s.pod, "deleted", "0", 1)} }},
		"names of volume and container swapped": {change: func(t *testing.T, s *attackedPods) {
			s.rename(t, "app", "configmap")
			// Stale as well, at a place of the right container and index, but of a volume that is not mounted there.
			lost := filepath.Join(s.Root, "lost")
			must(t, os.WriteFile(lost, nil, 0o644))
			s.Bind(lost, s.Point(s.pod, "configmap", "configmap", 1))
			must(t, os.Remove(lost))
		}, want: func(s *attackedPods) []string { return []string{s.Point(s.pod, "app", "configmap", 1)} }},
		"another volume at the same index": {
			change: func(_ *testing.T, s *attackedPods) { s.pod.Spec.Containers[1].VolumeMounts[0].Name = "secret" },
			want:   func(s *attackedPods) []string { return []string{s.point} },
		},
		"another index": {change: func(_ *testing.T, s *attackedPods) {
			c := &s.pod.Spec.Containers[1]
			c.VolumeMounts = append([]corev1.VolumeMount{{Name: "configmap", MountPath: "/y"}}, c.VolumeMounts...)
		}, want: func(s *attackedPods) []string { return []string{s.point} }},
		"a container and a volume that climb": {
			change: func(_ *testing.T, s *attackedPods) {
				mounts := []corev1.VolumeMount{{Name: "..", MountPath: "/x", SubPath: "../../key"}}
				s.pod.Spec.Containers = []corev1.Container{{Name: "..", VolumeMounts: mounts}}
				s.pod.Spec.Volumes[0].Name = ".."
			},
			want: nothing, reason: "no stale subPath mount", err: true,
		},
		"a UID that climbs":        withUID(func(s *attackedPods) string { return "../" + string(s.neighbour.UID) }),
		"a UID that leads on":      withUID(func(s *attackedPods) string { return "x/../" + string(s.neighbour.UID) }),
		"a UID with a slash":       withUID(func(s *attackedPods) string { return string(s.neighbour.UID) + "/" }),
		"a UID that is the parent": withUID(func(*attackedPods) string { return ".." }),
		"a UID that is the same":   withUID(func(*attackedPods) string { return "." }),
		"a UID with a NUL":         withUID(func(s *attackedPods) string { return string(s.neighbour.UID) + "\x00" }),
		"another's UID, and its name, but not its spec": {
			change: func(_ *testing.T, s *attackedPods) {
				s.pod.UID, s.pod.Name = s.neighbour.UID, s.neighbour.Name
				s.pod.Spec.Containers[1].VolumeMounts[0].SubPath = ""
			},
			want: nothing, reason: "no stale subPath mount",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAttackedPods(t)
			s.renew()
			want := []string{s.point, s.Point(s.pod, "configmap", "sidecar", 0)}
			c.change(t, s)
			s.pods.Set(s.pod)
			s.request.Pod.Name = s.pod.Name
			if c.want != nil {
				want = c.want(s)
			}
			before := s.tables(t)
			if result, err := s.runDiagnoser(t, nil); err == nil {
				finds(t, result, want)
			} else if !c.err {
				t.Errorf("diagnosis: %v", err)
			}
			plan, err := s.healer.Plan(t.Context(), s.request)
			if err != nil && !c.err || !strings.Contains(plan.NotApplicable, c.reason) && err == nil {
				t.Errorf("reason %q, error %v, want %q", plan.NotApplicable, err, c.reason)
			}
			if diff := cmp.Diff(want, points(plan)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			s.apply(t, plan)
			s.holds(t, before, s.repairs(plan, s.pod.Spec.Volumes[0].Name)...)
		})
	}
}

// TestNamesThatLookDeleted has sources whose names look like the kernel's mark. They are alive until they are removed.
func TestNamesThatLookDeleted(t *testing.T) {
	s := newAttackedPods(t)
	names := []string{
		"deleted", "x (deleted)", "x/deleted", "x//deleted2", "y//deleted", "d/deleted/deleted", `z\057\057deleted`,
		`\040//deleted`, " /deleted", "tab\tdeleted", "#deleted", "deleted ", "line\n1 1 0:1 /x//deleted /y rw - tmpfs tmpfs rw",
		"\xff//deleted",
	}
	volume := s.Volume(s.pod, kubelettest.EmptyDir, "empty")
	points := map[string]string{}
	for i, name := range names {
		s.ask(1, "empty", name)
		source := filepath.Join(volume, name)
		if i%2 == 0 {
			must(t, os.MkdirAll(source, 0o755))
		} else {
			must(t, os.MkdirAll(filepath.Dir(source), 0o755))
			must(t, os.WriteFile(source, nil, 0o644))
		}
		points[name] = s.Point(s.pod, "empty", "sidecar", i+1)
		s.Bind(source, points[name])
	}
	for _, name := range names {
		if p := s.plan(t); p.NotApplicable == "" || len(p.Actions) != 0 {
			t.Fatalf("plan %q while all are alive", processortest.Targets(p))
		}
		finds(t, s.diagnose(t, nil), nil)
		before := s.tables(t)
		must(t, os.Remove(filepath.Join(volume, name)))
		finds(t, s.diagnose(t, nil), []string{points[name]})
		p := s.plan(t)
		if diff := cmp.Diff([]string{"Unmount " + points[name]}, processortest.Targets(p)); diff != "" {
			t.Errorf("plan after %q was removed (-want +got):\n%s", name, diff)
		}
		s.apply(t, p)
		s.holds(t, before, healing{point: points[name]})
	}
}

// plant is attackedPods whose pod has a subPath of an emptyDir, which is for its containers to write to.
type plant struct {
	*attackedPods
	fuse          *kerneltest.Actor
	volume, point string
	link          string // the part of the subPath that a link is put for
}

// plants are where a container may put a link.
var plants = map[string]struct{ subPath, link string }{
	"the subPath":   {"sub", "sub"},
	"a parent":      {"parent/sub", "parent"},
	"..data":        {"..data/sub", "..data"},
	"deep in there": {"a/b/c/sub", "a/b"},
}

func newPlant(t *testing.T, subPath, link string) *plant {
	t.Helper()
	p := &plant{attackedPods: newAttackedPods(t), link: link}
	p.ask(0, "empty", subPath)
	p.volume, p.point = p.Volume(p.pod, kubelettest.EmptyDir, "empty"), p.Point(p.pod, "empty", "app", 1)
	rest := strings.TrimPrefix(subPath, link)
	for _, dir := range []string{p.volume + "/" + subPath, p.volume + "/inside" + rest, p.outside() + rest, p.fuseDir()} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	p.Bind(filepath.Join(p.volume, subPath), p.point)
	p.fuse = kerneltest.FUSE(t, p.fuseDir())
	for i := range 100 {
		must(t, os.Symlink(fmt.Sprintf("chain%d", i+1), filepath.Join(p.volume, fmt.Sprintf("chain%d", i))))
	}
	must(t, os.Symlink("loop2", filepath.Join(p.volume, "loop1")))
	must(t, os.Symlink("loop1", filepath.Join(p.volume, "loop2")))
	must(t, os.Symlink(p.outside(), filepath.Join(p.volume, "out")))
	return p
}

// outside is another pod's volume.
func (p *plant) outside() string {
	return filepath.Join(p.Volume(p.neighbour, kubelettest.EmptyDir, "empty"), "theirs")
}

func (p *plant) fuseDir() string { return filepath.Join(filepath.Dir(p.Root), "fuse") }

// ways are where a link can lead that must not be followed.
func (p *plant) ways(t *testing.T) map[string]string {
	t.Helper()
	up := strings.Repeat("../", 40)
	near, err := filepath.Rel(filepath.Join(p.volume, filepath.Dir(p.link)), p.outside()) // on the same mount
	must(t, err)
	return map[string]string{
		"the root": "/", "the root by climbing": up,
		"another pod's volume": p.outside(), "another pod's volume by climbing": up + p.outside()[1:],
		"another pod's volume by few steps": near, "another pod's bind": filepath.Dir(p.healthy),
		"a process' own root": "/proc/self/root", "another pod's volume through a process": "/proc/self/root" + p.outside(),
		"a thread's working directory": "/proc/thread-self/cwd", "a descriptor": "/proc/self/fd/0",
		"out by its own path":               p.volume + "/" + up + p.outside()[1:],
		"out by its own path and few steps": filepath.Join(p.volume, filepath.Dir(p.link)) + "/" + near,
		"out by a long way":                 strings.Repeat("./", 1500) + "out", "out by another link": "out",
		"itself": filepath.Base(p.link), "a loop": "loop1", "a long chain": "chain0", "a device": "/dev/zero",
		"a file system that hangs":     filepath.Join(p.fuseDir(), "hang"),
		"a place below one that hangs": filepath.Join(p.fuseDir(), "hang", "x"),
	}
}

// put replaces a part of the subPath by a link.
func (p *plant) put(t *testing.T, way string) {
	t.Helper()
	at := filepath.Join(p.volume, p.link)
	if _, err := os.Readlink(at); err == nil {
		must(t, os.Remove(at))
	} else {
		must(t, os.Rename(at, filepath.Join(p.volume, "bak")))
	}
	must(t, os.Symlink(way, at))
}

// intime runs what must not hang.
func (p *plant) intime(t *testing.T, what string, fn func()) {
	t.Helper()
	late := time.AfterFunc(10*time.Second, p.fuse.Kill) // ends what waits for it
	fn()
	if !late.Stop() {
		t.Errorf("%s did not end", what)
	}
}

// TestPlantedLinksAreNotFollowed has a container put links into its volume. One that is followed out of it would show
// another file there, so that the bind would be called stale.
func TestPlantedLinksAreNotFollowed(t *testing.T) {
	for where, c := range plants {
		t.Run("for "+where, func(t *testing.T) {
			p := newPlant(t, c.subPath, c.link)
			before := p.tables(t)
			for to, way := range p.ways(t) {
				p.put(t, way)
				p.intime(t, "the plan with a link to "+to, func() {
					if plan := p.plan(t); plan.NotApplicable == "" || len(plan.Actions) != 0 {
						t.Errorf("plan %q with a link to %s", processortest.Targets(plan), to)
					}
					result := p.diagnose(t, nil)
					if len(result.Findings) != 0 || !strings.Contains(result.NotApplicable, "of these 3 have a source that is alive") {
						t.Errorf("diagnosis with a link to %s: %+v, want the bind alive", to, result)
					}
				})
			}
			p.holds(t, before)
			p.put(t, strings.Repeat("../", strings.Count(c.link, "/"))+"inside")
			finds(t, p.diagnose(t, nil), []string{p.point})
			plan := p.plan(t) // a link that stays inside is followed: the subPath names another directory now
			if diff := cmp.Diff([]string{"Unmount " + p.point}, processortest.Targets(plan)); diff != "" {
				t.Fatalf("plan with a link that stays inside (-want +got):\n%s", diff)
			}
			for to, way := range p.ways(t) {
				p.put(t, way)
				p.intime(t, "the act with a link to "+to, func() {
					if done, err := p.healer.Apply(t.Context(), p.request, plan.Actions[0]); !processor.IsStalled(err) {
						t.Errorf("with a link to %s: %+v, error %v, want a stalled one", to, done, err)
					}
				})
			}
			p.holds(t, before)
			must(t, os.RemoveAll(filepath.Join(p.volume, "bak")))
			for to, way := range p.ways(t) {
				p.put(t, way)
				p.intime(t, "the plan for a deleted source with a link to "+to, func() {
					if diff := cmp.Diff([]string{"Unmount " + p.point}, processortest.Targets(p.plan(t))); diff != "" {
						t.Errorf("plan for a deleted source with a link to %s (-want +got):\n%s", to, diff)
					}
				})
			}
			p.apply(t, p.plan(t))
			p.holds(t, before, healing{point: p.point})
		})
	}
}
