// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
)

// ago is a time before noon.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// eventOf is an Event of the pod with UID "u", some time before noon.
func eventOf(reason, message string, before time.Duration) corev1.Event {
	return corev1.Event{Reason: reason, Message: message, LastTimestamp: ago(before), InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: "u"},
		Source: corev1.EventSource{Component: "kubelet"}}
}

func creating(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
}

func runningSince(name string, since metav1.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}}
}

// TestLastMountEvent: an Event counts until the kubelet has shown that the volumes are mounted.
func TestLastMountEvent(t *testing.T) {
	t.Parallel()
	const (
		secret  = `MountVolume.SetUp failed for volume "v" : secret "nosuch" not found`
		driver  = `MountVolume.SetUp failed for volume "v" : kubernetes.io/csi: driver name x not found in the list of registered CSI drivers`
		timeout = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v]: timed out waiting for the condition"
		attach  = `AttachVolume.Attach failed for volume "pv-1" : rpc error`
		done    = `AttachVolume.Attach succeeded for volume "pv-1"`
	)
	pending := corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{creating("c")}}
	runs := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{runningSince("c", ago(time.Hour))}}
	restarts := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{creating("c")}}
	restarts.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{StartedAt: ago(time.Hour)}
	initRuns := corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{runningSince("i", ago(time.Minute))},
		ContainerStatuses: []corev1.ContainerStatus{creating("c")}}
	ready := pending
	ready.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Minute)}}
	ended := pending
	ended.Phase = corev1.PodFailed
	other := eventOf("FailedMount", secret, time.Second)
	other.InvolvedObject.UID = "the pod before"
	series := eventOf("FailedMount", secret, time.Hour)
	series.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(noon.Add(-time.Second))}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		list   []corev1.Event
		want   string // a part of the message
	}{
		"secret":                     {pending, []corev1.Event{eventOf("FailedMount", secret, time.Second)}, "nosuch"},
		"for an hour":                {pending, []corev1.Event{eventOf("FailedMount", secret, 59*time.Minute)}, "nosuch"},
		"the last one":               {pending, []corev1.Event{eventOf("FailedMount", driver, time.Second), eventOf("FailedMount", secret, time.Minute)}, "CSI drivers"},
		"the one that names it":      {pending, []corev1.Event{eventOf("FailedMount", timeout, time.Second), eventOf("FailedMount", secret, time.Minute)}, "nosuch"},
		"a time that is over":        {pending, []corev1.Event{eventOf("FailedMount", timeout, time.Second)}, "unmounted volumes"},
		"block device":               {pending, []corev1.Event{eventOf("FailedMapVolume", `MapVolume.SetUpDevice failed for volume "pv-1" : x`, time.Second)}, "MapVolume"},
		"attach":                     {pending, []corev1.Event{eventOf("FailedAttachVolume", attach, time.Second)}, "rpc error"},
		"attached since":             {pending, []corev1.Event{eventOf("FailedAttachVolume", attach, time.Minute), eventOf("SuccessfulAttachVolume", done, time.Second)}, ""},
		"another one was attached":   {pending, []corev1.Event{eventOf("FailedAttachVolume", attach, time.Minute), eventOf("SuccessfulAttachVolume", strings.Replace(done, "pv-1", "pv-2", 1), time.Second)}, "rpc error"},
		"sandbox, a mount":           {pending, []corev1.Event{eventOf("FailedCreatePodSandBox", "Failed to create pod sandbox: failed to mount /run/x", time.Second)}, "mount /run/x"},
		"sandbox, the network":       {pending, []corev1.Event{eventOf("FailedCreatePodSandBox", "Failed to create pod sandbox: plugin type=\"x\" failed (add)", time.Second)}, ""},
		"in a series":                {restarts, []corev1.Event{series}, "nosuch"},
		"another pod of this name":   {pending, []corev1.Event{other}, ""},
		"other Events":               {pending, []corev1.Event{eventOf("FailedScheduling", "no node", time.Second)}, ""},
		"before the start":           {runs, []corev1.Event{eventOf("FailedMount", secret, 2*time.Hour)}, ""},
		"in the second of the start": {runs, []corev1.Event{eventOf("FailedMount", secret, time.Hour)}, ""},
		"while it runs":              {runs, []corev1.Event{eventOf("FailedMount", secret, time.Minute)}, "nosuch"},
		"once while it ran":          {runs, []corev1.Event{eventOf("FailedMount", secret, 20*time.Minute)}, ""},
		"after a reboot":             {restarts, []corev1.Event{eventOf("FailedMount", secret, 20*time.Minute)}, "nosuch"},
		"before a restart":           {restarts, []corev1.Event{eventOf("FailedMount", secret, 2*time.Hour)}, ""},
		"before an init container":   {initRuns, []corev1.Event{eventOf("FailedMount", secret, 2*time.Minute)}, ""},
		"before the sandbox":         {ready, []corev1.Event{eventOf("FailedMount", secret, 2*time.Minute)}, ""},
		"before the image":           {pending, []corev1.Event{eventOf("FailedMount", secret, 2*time.Minute), eventOf("Pulling", "Pulling image", time.Minute)}, ""},
		"the pod has ended":          {ended, []corev1.Event{eventOf("FailedMount", secret, time.Second)}, ""},
		"no Event":                   {pending, nil, ""},
	} {
		pod := &corev1.Pod{Status: tc.status}
		pod.UID = "u"
		got := ""
		if e := lastMountEvent(pod, tc.list, mountedTime(pod, tc.list), noon); e != nil {
			got = e.Message
		}
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestNoFaultAsksEvents: without a fault, the last line and the status depend on the Events of the pod.
func TestNoFaultAsksEvents(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "worker-7", Volumes: []corev1.Volume{
		{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "nosuch"}}},
		{Name: "m", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
		{Name: "i", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x.example"}}},
		{Name: "p", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}}}
	pod.Namespace, pod.Name, pod.UID = "shop", "web", "u"
	found := func(reason, volume string) podEvents {
		e := eventOf(reason, `MountVolume.SetUp failed for volume "`+volume+`" : it is`+"\n\x1bnot there", 0)
		e.LastTimestamp = metav1.NewTime(time.Now().Add(time.Minute)) // so that it is 0s ago
		return podEvents{pod: pod, last: &e}
	}
	const nothing = "No mount fault was found: the kubelet still creates containers"
	for name, tc := range map[string]struct {
		events podEvents
		want   []string
		err    error
	}{
		"no Event":  {podEvents{pod: pod}, []string{"✓ " + nothing}, nil},
		"no right":  {podEvents{unread: errors.New("refused: no right")}, []string{"! " + nothing, "! The Events of the pod were not looked at: refused: no right"}, errors.New("")},
		"secret":    {found("FailedMount", "s"), []string{"! No broken mount was found, but Event FailedMount of kubelet, 0s ago: MountVolume.SetUp failed for volume \"s\" : it is \\x1bnot there (", "  kubectl get secret nosuch -n shop ", "  kubectl describe pod -n shop web "}, verb.ErrFaults},
		"ConfigMap": {found("FailedMount", "m"), []string{"  kubectl get configmap conf -n shop "}, verb.ErrFaults},
		"driver":    {found("FailedMount", "i"), []string{"  kubectl get csinode worker-7 -o yaml  ", "needs x.example"}, verb.ErrFaults},
		"claim":     {found("FailedAttachVolume", "pv-1"), []string{"  kubectl get pvc -n shop data ", "  kubectl get volumeattachments "}, verb.ErrFaults},
	} {
		out := formatText
		r := &targetRunner{options: &runOptions{out: &out}, api: &client{}}
		d := step(func(s *v1.DiagnosisStatus) {
			s.Phase, s.Outcome, s.Summary = v1.DiagnosisSucceeded, v1.OutcomeNoFault, nothing
		})
		s := newStory(terminal.Screen{}, d)
		s.hints = func(e podEvents) []terminal.Hint { return e.hints(r.api) }
		s.askEvents = func(*v1.Diagnosis) podEvents { r.events = tc.events; return tc.events }
		got := s.newsText(d)
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in:\n%s", name, want, got)
			}
		}
		if strings.Contains(got, "✓") != (tc.err == nil) {
			t.Errorf("%s:\n%s", name, got)
		}
		if err := r.finalError(d); (err == nil) != (tc.err == nil) || errors.Is(err, verb.ErrFaults) != errors.Is(tc.err, verb.ErrFaults) {
			t.Errorf("%s: %v, want %v", name, err, tc.err)
		}
	}
}
