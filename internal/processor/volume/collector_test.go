// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
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

// listedBroken has a dead mount, a copy of it, and a staging path that is alive.
func listedBroken(pod *corev1.Pod, name string) *volume.Health {
	health := brokenVolumeOf(pod, name, fault.DisconnectedFUSE)
	health.Evidence.Staging, health.Evidence.Expected.StagingRoot.State = &volume.Staging{Point: "/g"}, probe.Alive
	health.Copies = []*volume.Copy{{
		Mount:  mountns.Mount{Mount: mountinfo.Mount{Point: "/data"}, Namespace: mountns.Namespace{Inode: 42}},
		Holder: volume.Holder{Container: "app"}, Verdict: volume.Verdict{Code: fault.DisconnectedFUSE},
	}}
	return health
}

func collectVolumes(t *testing.T, s *fakeSurveyor, r processor.Request) ([]listedVolume, processor.Result) {
	t.Helper()
	pods := &kubelettest.Pods{}
	pods.Set(kubelettest.NewPod())
	result, err := (&Collector{Pods: pods, Inspector: s}).Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if result.NotApplicable != "" {
		return nil, result
	}
	return decodeVolumes(t, result), result
}

func decodeVolumes(t *testing.T, result processor.Result) (list []listedVolume) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.Values[keyVolumes]), &list); err != nil {
		t.Fatalf("list %q: %v", result.Values[keyVolumes], err)
	}
	return list
}

func TestListsEveryVolume(t *testing.T) {
	t.Parallel()
	of := kubelettest.NewPod()
	s := &fakeSurveyor{survey: volume.Survey{
		Volumes: []*volume.Health{healthyVolume(of, "a"), listedBroken(of, "b")}, Namespace: 4026531841,
		Coverage: mountstate.Coverage{
			Mounts: 30, Asked: 4, Namespaces: &mountns.Survey{Backend: "kernel", Namespaces: 7, Mounts: 99},
		},
		Unknown: mountstate.Unknown{Gaps: []mountstate.Gap{{What: "mnt:[9]", Why: "it went"}}},
	}}
	list, result := collectVolumes(t, s, processor.Request{})
	pod := fault.Pod{Namespace: of.Namespace, Name: of.Name, UID: string(of.UID)}
	want := []listedVolume{
		{
			volumePlace: volumePlace{pod, kubelet.CSIPlugin, "b", "/p/b"},
			listedMount: listedMount{FSType: "fuse.x", Device: "0:77", Root: "/b"}, State: probe.Disconnected, Record: s.survey.Volumes[1].Evidence.Record,
			Errno: sys.ENOTCONN.Error(), Staging: "/g", StagingState: probe.Alive, Code: fault.DisconnectedFUSE,
			Copies:   []listedCopy{{Code: fault.DisconnectedFUSE, Point: "/data", Namespace: 42, Container: "app"}},
			Evidence: []string{"seen to be so"},
		},
		{
			volumePlace: volumePlace{pod, kubelet.CSIPlugin, "a", "/p/a"},
			listedMount: listedMount{FSType: "fuse.x", Device: "0:77", Root: "/a"}, State: probe.Alive, Bindable: probe.Yes, Record: s.survey.Volumes[0].Evidence.Record,
		},
	}
	if diff := cmp.Diff(want, list, cmp.AllowUnexported(listedVolume{})); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, part := range []string{"2 volumes", "1 of them broken", "30 mounts", "7 mount namespaces (kernel)", "not looked at: mnt:[9]: it went"} {
		if !strings.Contains(result.Values[keyVolumeSurvey], part) {
			t.Errorf("survey %q does not say %q", result.Values[keyVolumeSurvey], part)
		}
	}
	if !reflect.DeepEqual(s.asked, mountstate.Scope{}) {
		t.Errorf("asked %+v, want the whole node", s.asked)
	}
}

func TestInspectsThePodAlone(t *testing.T) {
	t.Parallel()
	s, pod := &fakeSurveyor{}, kubelettest.NewPod()
	request := processor.Request{
		Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name},
		Values: map[string]string{volume.ParamVolume: "pvc-1", "collector.kubernetes.pod.detail": `{"metadata":{"uid":"other"}}`},
	}
	list, result := collectVolumes(t, s, request)
	if want := (mountstate.Scope{PodUIDs: []string{string(pod.UID)}, Volume: "pvc-1"}); !reflect.DeepEqual(s.asked, want) {
		t.Errorf("asked %+v, want %+v", s.asked, want)
	}
	if len(list) != 0 || result.Values[keyVolumes] != "[]" || !strings.Contains(result.Values[keyVolumeSurvey], "0 volumes") {
		t.Errorf("values %q, want an empty list that says so", result.Values)
	}
	request.Node = "other"
	if _, result := collectVolumes(t, s, request); !strings.Contains(result.NotApplicable, `"other"`) {
		t.Errorf("on another node: %+v", result)
	}
}

// TestListIsBounded: with thousands of volumes the broken ones are told, and how many are not.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	s, pod := &fakeSurveyor{}, kubelettest.NewPod()
	for n := range maxListedVolumes + 10 {
		s.survey.Volumes = append(s.survey.Volumes, healthyVolume(pod, fmt.Sprint("h", n)))
	}
	for n := range 3 {
		s.survey.Volumes = append(s.survey.Volumes, listedBroken(pod, fmt.Sprint("b", n)))
	}
	list, result := collectVolumes(t, s, processor.Request{})
	if len(list) != maxListedVolumes || list[0].Name != "b0" || list[2].Name != "b2" || list[3].Code != "" {
		t.Errorf("%d volumes, the first %+v", len(list), list[0])
	}
	if !strings.Contains(result.Values[keyVolumeSurvey], "13 volumes are not listed") {
		t.Errorf("survey %q", result.Values[keyVolumeSurvey])
	}
	var part []listedVolume
	text := (&Collector{}).Excerpt(processor.Request{}, keyVolumes, result.Values[keyVolumes], 3000)
	if err := json.Unmarshal([]byte(text), &part); err != nil || len(text) > 3000 || len(part) < 3 || part[2].Name != "b2" {
		t.Errorf("excerpt of %d bytes: %d volumes, %v", len(text), len(part), err)
	}
}
