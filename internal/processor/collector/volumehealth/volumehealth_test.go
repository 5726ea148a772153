// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
)

// seen is what an inspector sees, and was asked.
type seen struct {
	survey volume.Survey
	err    error
	asked  volume.Selection
}

func (s *seen) Inspect(_ context.Context, selection volume.Selection) (*volume.Survey, error) {
	s.asked = selection
	return &s.survey, s.err
}

func healthy(name string) *volume.Health {
	v := &volume.Health{}
	v.Volume = volume.Volume{
		Pod: fault.Pod{Namespace: "default", Name: "web", UID: "1"}, Plugin: kubelet.CSI, Name: name, Point: "/p/" + name,
		Mount: mountns.Mount{Mount: mountinfo.Mount{Major: 0, Minor: 77, Point: "/p/" + name, Root: "/v", FSType: "fuse.x"}},
	}
	v.Answer = probe.Answer{State: probe.Alive, Bindable: probe.Yes}
	return v
}

func broken(name string) *volume.Health {
	v := healthy(name)
	v.Code, v.Reasons = fault.DisconnectedFUSE, []string{"the connection is gone"}
	v.Answer = probe.Answer{State: probe.Disconnected, Errno: sys.ENOTCONN}
	v.Staging, v.StagingAnswer.State = &volume.Staging{Point: "/g"}, probe.Alive
	v.Copies = []*volume.Copy{{
		Mount:  mountns.Mount{Mount: mountinfo.Mount{Point: "/data"}, Namespace: mountns.Namespace{Inode: 42}},
		Holder: volume.Holder{Container: "app"}, Verdict: volume.Verdict{Code: fault.DisconnectedFUSE},
	}}
	return v
}

func collect(t *testing.T, s *seen, r processor.Request) ([]volumeDocument, processor.Result) {
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
	return decode(t, result), result
}

func decode(t *testing.T, result processor.Result) (list []volumeDocument) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.Values[KeyList]), &list); err != nil {
		t.Fatalf("list %q: %v", result.Values[KeyList], err)
	}
	return list
}

func TestListsEveryVolume(t *testing.T) {
	t.Parallel()
	s := &seen{survey: volume.Survey{
		Volumes: []*volume.Health{healthy("a"), broken("b")}, Namespace: 4026531841,
		Coverage: volume.Coverage{
			Mounts: 30, Asked: 4, Namespaces: &mountns.Survey{Backend: "kernel", Namespaces: 7, Mounts: 99}, Incomplete: []string{"mnt:[9] went"},
		},
	}}
	list, result := collect(t, s, processor.Request{})
	pod := fault.Pod{Namespace: "default", Name: "web", UID: "1"}
	want := []volumeDocument{
		{
			Pod: pod, Plugin: kubelet.CSI, Name: "b", Point: "/p/b", FSType: "fuse.x", Device: "0:77", Root: "/v", State: probe.Disconnected,
			Errno: sys.ENOTCONN.Error(), Staging: "/g", StagingState: probe.Alive, Code: fault.DisconnectedFUSE,
			Copies:   []copyDocument{{Code: fault.DisconnectedFUSE, Point: "/data", Namespace: 42, Container: "app"}},
			Evidence: []string{"the connection is gone"},
		},
		{Pod: pod, Plugin: kubelet.CSI, Name: "a", Point: "/p/a", FSType: "fuse.x", Device: "0:77", Root: "/v", State: probe.Alive, Bindable: probe.Yes},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, part := range []string{"2 volumes", "1 of them broken", "30 mounts", "7 mount namespaces (kernel)", "not looked at: mnt:[9] went"} {
		if !strings.Contains(result.Values[KeySurvey], part) {
			t.Errorf("survey %q does not say %q", result.Values[KeySurvey], part)
		}
	}
	if s.asked != (volume.Selection{}) {
		t.Errorf("asked %+v, want the whole node", s.asked)
	}
}

func TestLooksAtThePodAlone(t *testing.T) {
	t.Parallel()
	s, pod := &seen{}, kubelettest.NewPod()
	r := processor.Request{
		Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name},
		Values: map[string]string{volume.ParamVolume: "pvc-1", "collector.kubernetes.pod.detail": `{"metadata":{"uid":"other"}}`},
	}
	list, result := collect(t, s, r)
	if want := (volume.Selection{PodUID: string(pod.UID), Volume: "pvc-1"}); s.asked != want {
		t.Errorf("asked %+v, want %+v", s.asked, want)
	}
	if len(list) != 0 || result.Values[KeyList] != "[]" || !strings.Contains(result.Values[KeySurvey], "0 volumes") {
		t.Errorf("values %q, want an empty list that says so", result.Values)
	}
	r.Node = "other"
	if _, result := collect(t, s, r); !strings.Contains(result.NotApplicable, `"other"`) {
		t.Errorf("on another node: %+v", result)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	lost := errors.New("no mount table")
	pods := &kubelettest.Pods{}
	for name, c := range map[string]struct {
		pod     processor.Pod
		err     error
		stalled bool
		want    string
	}{
		"a name alone":      {processor.Pod{Name: "web"}, nil, true, `namespace is ""`},
		"a container alone": {processor.Pod{Container: "app"}, nil, true, "podReference"},
		"no such pod":       {processor.Pod{Namespace: "default", Name: "gone"}, nil, true, "default/gone"},
		"nothing seen":      {processor.Pod{}, lost, false, lost.Error()},
	} {
		_, err := (&Collector{Pods: pods, Inspector: &seen{err: c.err}}).Run(t.Context(), processor.Request{Pod: c.pod})
		if err == nil || !strings.Contains(err.Error(), c.want) || processor.IsStalled(err) != c.stalled {
			t.Errorf("%s: error %v, want one with %q, stalled %v", name, err, c.want, c.stalled)
		}
	}
}

// TestListIsBounded: with thousands of volumes the broken ones are told, and how many are not.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	s := &seen{}
	for n := range maxVolumes + 10 {
		s.survey.Volumes = append(s.survey.Volumes, healthy(fmt.Sprint("h", n)))
	}
	for n := range 3 {
		s.survey.Volumes = append(s.survey.Volumes, broken(fmt.Sprint("b", n)))
	}
	list, result := collect(t, s, processor.Request{})
	if len(list) != maxVolumes || list[0].Name != "b0" || list[2].Name != "b2" || list[3].Code != "" {
		t.Errorf("%d volumes, the first %+v", len(list), list[0])
	}
	if !strings.Contains(result.Values[KeySurvey], "13 volumes are not listed") {
		t.Errorf("survey %q", result.Values[KeySurvey])
	}
	var part []volumeDocument
	text := (&Collector{}).Excerpt(processor.Request{}, KeyList, result.Values[KeyList], 3000)
	if err := json.Unmarshal([]byte(text), &part); err != nil || len(text) > 3000 || len(part) < 3 || part[2].Name != "b2" {
		t.Errorf("excerpt of %d bytes: %d volumes, %v", len(text), len(part), err)
	}
}
