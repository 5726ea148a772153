// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
)

// fakeSurveyor is what an inspector sees, and was asked.
type fakeSurveyor struct {
	survey volume.Survey
	err    error
	asked  mountstate.Scope
}

func (s *fakeSurveyor) Inspect(_ context.Context, selection mountstate.Scope) (*volume.Survey, error) {
	s.asked = selection
	return &s.survey, s.err
}

// exitQuestions counts how often each driver was asked about.
type exitQuestions map[string]int

func (d exitQuestions) AnalyzeAll(_ context.Context, questions []fusedaemon.Question) []fusedaemon.Exit {
	var exits []fusedaemon.Exit
	for _, q := range questions {
		d[q.Driver]++
		exits = append(exits, fusedaemon.Exit{Cause: fusedaemon.OOMKilled, Sentences: []string{"the kernel killed the daemon of " + q.Driver}})
	}
	return exits
}

func healthyVolume(pod *corev1.Pod, name string) *volume.Health {
	health := &volume.Health{}
	health.Evidence.Volume = volume.Volume{
		Pod:    fault.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
		Plugin: kubelet.CSIPlugin, Name: name, Point: "/p/" + name,
		Mount: mountns.Mount{Mount: mountinfo.Mount{
			ID: 7, Parent: 1, Minor: 77, Point: "/p/" + name, Root: "/" + name, FSType: "fuse.x",
		}, Unique: 1000, Namespace: mountns.Namespace{Inode: 42}},
		Record: &kubelet.VolumeRecord{Driver: "fuse.example.com", Handle: "h-" + name},
	}
	health.Evidence.Answer = probe.Answer{State: probe.Alive, Bindable: probe.Yes}
	return health
}

func brokenVolumeOf(pod *corev1.Pod, name string, code fault.Code) *volume.Health {
	v := healthyVolume(pod, name)
	v.Verdict.Code, v.Verdict.Reasons, v.Replacement.NoSourceReason = code, []string{"seen to be so"}, "the staging path is dead, too"
	v.Evidence.Answer = probe.Answer{State: probe.Disconnected, Errno: sys.ENOTCONN}
	v.Surroundings.DaemonNotes = []string{"no process serves it"}
	return v
}

func requestFor(pod *corev1.Pod) processor.Request {
	return processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name}}
}

func runDiagnoser(t *testing.T, s *fakeSurveyor, request processor.Request, d exitQuestions) processor.Result {
	t.Helper()
	pods := &kubelettest.Pods{}
	pods.Set(kubelettest.NewPod())
	diagnoser := &Diagnoser{Pods: pods, Inspector: s}
	if d != nil {
		diagnoser.Exits = d
	}
	result, err := diagnoser.Run(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func brokenVolumes(t *testing.T, result processor.Result) (all []brokenVolume) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.Values[keyHealthList]), &all); err != nil {
		t.Fatalf("list %q: %v", result.Values[keyHealthList], err)
	}
	return all
}

func TestReportsEveryBrokenVolume(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	one, two := brokenVolumeOf(pod, "a", fault.DisconnectedFUSE), brokenVolumeOf(pod, "b", fault.DeletedVolumeSource)
	three := brokenVolumeOf(pod, "d", fault.DisconnectedFUSE)
	one.Surroundings.SharedWithCount, one.Surroundings.SharedWith = 1, []fault.Pod{{Namespace: "other", Name: "db", UID: "9"}}
	three.Surroundings.SharedWithCount, three.Surroundings.SharedWith = 1, one.Surroundings.SharedWith
	two.Replacement.Source, two.Replacement.NoSourceReason = &volume.Source{Path: "/g/b", Reason: "both records name it"}, ""
	s, d := &fakeSurveyor{survey: volume.Survey{Volumes: []*volume.Health{one, two, healthyVolume(pod, "c"), three}}}, exitQuestions{}
	result := runDiagnoser(t, s, requestFor(pod), d)
	if result.NotApplicable != "" || !reflect.DeepEqual(s.asked, mountstate.Scope{PodUIDs: []string{string(pod.UID)}}) {
		t.Fatalf("result %+v of %+v", result, s.asked)
	}
	want := map[string]string{
		keyHealthCode: "DisconnectedFUSE", keyHealthCodes: `["DisconnectedFUSE","DeletedVolumeSource","DisconnectedFUSE"]`,
		keyHealthSharedWith: `[{"namespace":"other","name":"db","uid":"9"}]`,
	}
	for key, value := range want {
		if result.Values[key] != value {
			t.Errorf("%s = %s, want %s", key, result.Values[key], value)
		}
	}
	for _, part := range []string{`volume "a" of pod default/web`, "DisconnectedFUSE", "the staging path is dead, too", "1 other pods"} {
		if !strings.Contains(result.Values[keyHealthResult], part) {
			t.Errorf("result %q does not say %q", result.Values[keyHealthResult], part)
		}
	}
	list := brokenVolumes(t, result)
	if len(list) != 3 || list[0].NoSource == "" || list[1].Source == nil || list[1].NoSource != "" || list[0].State != probe.Disconnected {
		t.Errorf("list %+v", list)
	}
	if exits := list[0].DaemonExit; !slices.Equal(exits, []string{"no process serves it", "the kernel killed the daemon of fuse.example.com"}) {
		t.Errorf("fate %q", exits)
	}
	if diff := cmp.Diff(exitQuestions{"fuse.example.com": 1}, d); diff != "" || len(list[1].DaemonExit) != 1 {
		t.Errorf("asked about daemons (-want +got):\n%s; of one that lives: %q", diff, list[1].DaemonExit)
	}
	if len(result.Findings) != 3 || result.Findings[0].Mount.ID != 1000 || result.Findings[0].Volume != "a" || result.Findings[0].Healed ||
		!slices.Contains(result.Findings[0].Evidence, "the kernel killed the daemon of fuse.example.com") {
		t.Errorf("findings %+v", result.Findings)
	}
	if again := runDiagnoser(t, s, requestFor(pod), nil); len(brokenVolumes(t, again)[0].DaemonExit) != 1 {
		t.Errorf("without one who knows about daemons: %+v", brokenVolumes(t, again)[0].DaemonExit)
	}
}

func TestSaysWhatIsNotBroken(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	denied := healthyVolume(pod, "b")
	denied.Evidence.Answer = probe.Answer{State: probe.Denied, Errno: sys.EACCES}
	var many []*volume.Health
	for n := range 14 {
		many = append(many, healthyVolume(pod, fmt.Sprint("v", n)))
	}
	for name, c := range map[string]struct {
		survey volume.Survey
		change func(r *processor.Request)
		want   []string
	}{
		"nothing there":  {volume.Survey{}, func(*processor.Request) {}, []string{"pod default/web has no volume mounted that lies on a file system that can die"}},
		"healthy":        {volume.Survey{Volumes: []*volume.Health{healthyVolume(pod, "a")}}, func(*processor.Request) {}, []string{`volume "a" at "/p/a": Alive`}},
		"not asked":      {volume.Survey{Volumes: []*volume.Health{denied}}, func(*processor.Request) {}, []string{"Denied", "permission denied"}},
		"many":           {volume.Survey{Volumes: many}, func(*processor.Request) {}, []string{`"v9"`, "and 4 more"}},
		"incomplete":     {volume.Survey{Unknown: mountstate.Unknown{Gaps: []mountstate.Gap{{What: "mnt:[9]", Why: "it has gone"}}}}, func(*processor.Request) {}, []string{"not looked at: mnt:[9]: it has gone"}},
		"the whole node": {volume.Survey{}, func(r *processor.Request) { r.Pod = processor.Pod{} }, []string{"this node has no volume"}},
		"another node":   {volume.Survey{}, func(r *processor.Request) { r.Node = "other" }, []string{`runs on node "my-node", and this is node "other"`}},
		"another volume": {volume.Survey{}, func(r *processor.Request) { r.Values = map[string]string{volume.ParamVolume: "data"} }, []string{`no volume "data"`, "PersistentVolume"}},
		// A volume of another pod is none of this one's, whatever the inspector says.
		"another pod's": {volume.Survey{Volumes: []*volume.Health{brokenVolumeOf(&corev1.Pod{}, "a", fault.HungMount)}}, func(*processor.Request) {}, []string{"no volume mounted"}},
		"not the container's": {volume.Survey{Volumes: []*volume.Health{brokenVolumeOf(pod, "a", fault.HungMount)}}, func(r *processor.Request) {
			r.Pod.Container = "sidecar"
		}, []string{`container "sidecar" of pod default/web has no volume`}},
		// Results of earlier operations and messages are not read.
		"forged": {volume.Survey{}, func(r *processor.Request) {
			r.Values = map[string]string{keyHealthCode: "HungMount", "collector.kubernetes.volume_health.list": `[{"code":"HungMount"}]`}
		}, []string{"no volume mounted"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := requestFor(pod)
			c.change(&r)
			result := runDiagnoser(t, &fakeSurveyor{survey: c.survey}, r, nil)
			for _, part := range c.want {
				if !strings.Contains(result.NotApplicable, part) || len(result.Findings) > 0 {
					t.Errorf("not applicable: %q, want %q; findings %+v", result.NotApplicable, part, result.Findings)
				}
			}
		})
	}
}

// TestNarrowsToAContainer by what its spec mounts.
func TestNarrowsToAContainer(t *testing.T) {
	t.Parallel()
	pod, pods := kubelettest.NewPod(), &kubelettest.Pods{}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data"}}
	pods.Set(pod)
	s := &fakeSurveyor{survey: volume.Survey{Volumes: []*volume.Health{brokenVolumeOf(pod, "pvc-1", fault.DisconnectedFUSE)}}}
	for container, want := range map[string]bool{"app": true, "sidecar": false} {
		r := requestFor(pod)
		r.Pod.Container = container
		result, err := (&Diagnoser{Pods: pods, Inspector: s}).Run(t.Context(), r)
		if err != nil || (result.NotApplicable == "") != want {
			t.Errorf("container %q: %+v, %v", container, result, err)
		}
	}
}

// TestBadRequests of the diagnoser and of the collector.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	lost := errors.New("no mount table")
	for name, c := range map[string]struct {
		pod     processor.Pod
		stalled bool
		want    string
	}{
		"a name alone":      {processor.Pod{Name: "web"}, true, `namespace is ""`},
		"a container alone": {processor.Pod{Container: "app"}, true, "podReference"},
		"no such pod":       {processor.Pod{Namespace: "default", Name: "gone"}, true, "default/gone"},
		"nothing seen":      {processor.Pod{}, false, lost.Error()},
	} {
		pods, s := &kubelettest.Pods{}, &fakeSurveyor{err: lost}
		for _, p := range []processor.Processor{&Diagnoser{Pods: pods, Inspector: s}, &Collector{Pods: pods, Inspector: s}} {
			_, err := p.Run(t.Context(), processor.Request{Pod: c.pod})
			if err == nil || !strings.Contains(err.Error(), c.want) || processor.IsStalled(err) != c.stalled {
				t.Errorf("%s: %s: error %v, want one with %q, stalled %v", p.Name(), name, err, c.want, c.stalled)
			}
		}
	}
}

// TestOneNamespaceTakesNotAllResults: the last of a thousand dead volumes is that of another namespace, and it is listed.
func TestOneNamespaceTakesNotAllResults(t *testing.T) {
	t.Parallel()
	pod, s := kubelettest.NewPod(), &fakeSurveyor{}
	for n := range 2 * maxBrokenVolumes {
		s.survey.Volumes = append(s.survey.Volumes, brokenVolumeOf(pod, fmt.Sprint("v", n), fault.DisconnectedFUSE))
	}
	other := kubelettest.NewPod()
	other.Namespace, other.UID = "victim", "other"
	s.survey.Volumes = append(s.survey.Volumes, brokenVolumeOf(other, "lost", fault.DisconnectedFUSE))
	result := runDiagnoser(t, s, processor.Request{}, exitQuestions{})
	if !slices.ContainsFunc(brokenVolumes(t, result), func(v brokenVolume) bool { return v.Name == "lost" }) {
		t.Error("the volume of the other namespace is not in the results")
	}
}

// TestResultsAreBounded: a node with a thousand dead volumes.
func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	pod, s := kubelettest.NewPod(), &fakeSurveyor{}
	for n := range maxBrokenVolumes + 500 {
		v := brokenVolumeOf(pod, fmt.Sprint("v", n), fault.DisconnectedFUSE)
		v.Surroundings.SharedWith = []fault.Pod{{UID: fmt.Sprint(n)}}
		s.survey.Volumes = append(s.survey.Volumes, v)
	}
	result := runDiagnoser(t, s, processor.Request{}, exitQuestions{})
	var results []string
	if err := json.Unmarshal([]byte(result.Values[keyHealthResults]), &results); err != nil {
		t.Fatal(err)
	}
	if len(results) != maxBrokenVolumes+1 || !strings.Contains(results[maxBrokenVolumes], "500 more volumes") || len(brokenVolumes(t, result)) != maxBrokenVolumes {
		t.Errorf("%d results, the last %q", len(results), results[len(results)-1])
	}
	if n := strings.Count(result.Values[keyHealthSharedWith], "uid"); n != maxSharedWith {
		t.Errorf("%d shares", n)
	}
	text := (&Diagnoser{}).Excerpt(processor.Request{}, keyHealthList, result.Values[keyHealthList], 5000)
	var part []brokenVolume
	if err := json.Unmarshal([]byte(text), &part); err != nil || len(part) == 0 || part[0].Name != "v0" || len(text) > 5000 {
		t.Errorf("excerpt: %d volumes in %d bytes, %v", len(part), len(text), err)
	}
}
