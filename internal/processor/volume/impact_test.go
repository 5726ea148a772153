// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/processor"
)

// servedDrivers has the pod that serves each driver.
type servedDrivers map[string]fault.Pod

func (s servedDrivers) AnalyzeAll(_ context.Context, questions []fusedaemon.Question) (exits []fusedaemon.Exit) {
	for _, q := range questions {
		exits = append(exits, fusedaemon.Exit{Pod: s[q.Driver], Container: "plugin"})
	}
	return exits
}

// ownerError is a runtime that knows no container, or does not answer.
type ownerError struct{ err error }

func (o ownerError) Owner(context.Context, string) (cri.Owner, error) { return cri.Owner{}, o.err }

// TestDaemonsAreKnownByTheKernelOrTheirDriver, or it is said why not.
func TestDaemonsAreKnownByTheKernelOrTheirDriver(t *testing.T) {
	t.Parallel()
	const old = "the kernel does not name the connection"
	driver := fault.Pod{Namespace: "kube-system", Name: "csi-x", UID: "d1"}
	// No process has this number, so its control group is not read: its pod is not known.
	const noProcess = 1 << 30
	server := map[uint32][]fuse.Server{77: {{PID: noProcess, Command: "mem"}, {PID: noProcess + 1, Command: "child"}}}
	for name, tc := range map[string]struct {
		servers map[uint32][]fuse.Server
		unseen  string
		driver  string
		exits   ExitAnalyzer
		major   uint32
		pids    []int
		pod     fault.Pod
		unknown string
	}{
		"by the kernel":     {servers: server, driver: "x", exits: servedDrivers{"x": driver}, pids: []int{noProcess}},
		"by the driver":     {unseen: old, driver: "x", exits: servedDrivers{"x": driver}, pids: []int{0}, pod: driver},
		"another's":         {servers: map[uint32][]fuse.Server{78: server[77]}, unseen: old, driver: "y", exits: servedDrivers{"x": driver}, unknown: old},
		"no driver":         {unseen: old, exits: servedDrivers{"": driver}, unknown: old},
		"nothing of driver": {unseen: old, driver: "x", unknown: old},
		"has ended":         {driver: "x", exits: servedDrivers{"x": driver}, unknown: "its daemon has ended"},
		"on a device":       {servers: server, major: 8, unknown: "on a device"},
	} {
		s := impactSearch{
			ImpactDiagnoser: &ImpactDiagnoser{Exits: tc.exits, Owners: ownerError{cri.ErrNotFound}}, servers: tc.servers, unseenReason: tc.unseen,
			known: map[int]fault.ServingDaemon{}, drivers: map[string]fusedaemon.Exit{},
		}
		v := healthyVolume(kubelettest.NewPod(), "a").Evidence.Volume
		v.Mount.Major = tc.major
		all, unknown := s.daemonsOf(t.Context(), &v, tc.driver)
		var pids []int
		for _, d := range all {
			if pids = append(pids, d.PID); d.Pod != tc.pod || (d.PodUnknown == "") != (d.PID == 0) {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if !cmp.Equal(pids, tc.pids) || (unknown == "") != (tc.unknown == "") || !strings.Contains(unknown, tc.unknown) {
			t.Errorf("%s: processes %v, %q, want %v, %q", name, pids, unknown, tc.pids, tc.unknown)
		}
	}
}

// TestPodOfADaemon: a process in no container is in no pod, and a runtime that does not answer is no such proof.
func TestPodOfADaemon(t *testing.T) {
	t.Parallel()
	own := fuse.Server{PID: 1, Command: "init"}
	for name, tc := range map[string]struct {
		owners volume.Runtime
		known  bool
	}{"in none": {ownerError{cri.ErrNotFound}, true}, "no answer": {ownerError{errors.New("silent")}, false}, "no runtime": {nil, false}} {
		s := impactSearch{ImpactDiagnoser: &ImpactDiagnoser{Owners: tc.owners}, known: map[int]fault.ServingDaemon{}}
		if d := s.daemonOf(t.Context(), own); (d.PodUnknown == "") != tc.known || d.Pod != (fault.Pod{}) || s.known[1] != d {
			t.Errorf("%s: %+v", name, d)
		}
	}
	s := impactSearch{ImpactDiagnoser: &ImpactDiagnoser{Owners: driverRuntime{}}, known: map[int]fault.ServingDaemon{}}
	if d := s.daemonOf(t.Context(), own); d.Pod.UID != podUID || d.Container != "plugin" || d.PodUnknown != "" {
		t.Errorf("of the driver: %+v", d)
	}
}

// TestWayBack: a volume comes back by itself only if every container has the whole of it and follows the mounts of the host.
func TestWayBack(t *testing.T) {
	t.Parallel()
	follows, none := corev1.MountPropagationHostToContainer, corev1.MountPropagationNone
	mount := func(name, sub string, mode *corev1.MountPropagationMode) corev1.VolumeMount {
		return corev1.VolumeMount{Name: name, MountPath: "/" + name, SubPath: sub, MountPropagation: mode}
	}
	for name, tc := range map[string]struct {
		mounts []corev1.VolumeMount
		change func(v *volume.Volume)
		want   fault.Return
	}{
		"follows":             {mounts: []corev1.VolumeMount{mount("a", "", &follows), mount("b", "", nil)}, want: fault.ReturnByItself},
		"one does not":        {mounts: []corev1.VolumeMount{mount("a", "", &follows), mount("a", "", nil)}, want: fault.ReturnNewPod},
		"says so":             {mounts: []corev1.VolumeMount{mount("a", "", &none)}, want: fault.ReturnNewPod},
		"a subPath":           {mounts: []corev1.VolumeMount{mount("a", "x", &follows)}, want: fault.ReturnNewPod},
		"no container has it": {mounts: []corev1.VolumeMount{mount("b", "", &follows)}, want: fault.ReturnNewPod},
		"staged": {mounts: []corev1.VolumeMount{mount("a", "", &follows)}, change: func(v *volume.Volume) { v.Staging = &volume.Staging{} },
			want: fault.ReturnRepair},
		"below a mount": {mounts: []corev1.VolumeMount{mount("a", "", &follows)}, change: func(v *volume.Volume) { v.Mount.Point = "/p" }, want: fault.ReturnNewPod},
		"inside":        {mounts: []corev1.VolumeMount{mount("a", "", &follows)}, change: func(v *volume.Volume) { v.Origin.Inside = true }, want: fault.ReturnNewPod},
		"known by its claim": {mounts: []corev1.VolumeMount{mount("data", "", &follows)}, change: func(v *volume.Volume) { v.SpecName = "data" },
			want: fault.ReturnByItself},
	} {
		v, pod := healthyVolume(kubelettest.NewPod(), "a").Evidence.Volume, kubelettest.NewPod()
		pod.Spec.Containers = pod.Spec.Containers[:1]
		pod.Spec.Containers[0].VolumeMounts = tc.mounts
		if tc.change != nil {
			tc.change(&v)
		}
		if got := wayBack(&v, pod); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if got := wayBack(&v, nil); got == fault.ReturnByItself {
			t.Errorf("%s, the pod is not known: %s", name, got)
		}
	}
}

// TestUnmountRefusals gives the reasons for which a volume cannot be unmounted.
func TestUnmountRefusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(h *volume.Health)
		says   string
	}{
		"healthy": {func(*volume.Health) {}, ""},
		"dead":    {func(h *volume.Health) { h.Evidence.Answer.State = probe.Disconnected }, ""},
		"hung":    {func(h *volume.Health) { h.Evidence.Answer.State = probe.Hung }, "does not answer"},
		"frozen":  {func(h *volume.Health) { h.Evidence.Answer.State = probe.Frozen }, "does not answer"},
		"inside":  {func(h *volume.Health) { h.Evidence.Origin.Inside = true }, `inside volume "a"`},
		"of the node": {func(h *volume.Health) {
			h.Evidence.Plugin = volume.HostPathPlugin
			h.Evidence.Answer.State = probe.Hung
		}, ""},
		"kernel or disk": {func(h *volume.Health) { h.Evidence.Mount.FSType = "nfs4"; h.Evidence.Answer.State = probe.Hung }, "does not answer"},
	} {
		h := healthyVolume(kubelettest.NewPod(), "a")
		tc.change(h)
		if got := unmountRefusal(h); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("%s: %q, want %q", name, got, tc.says)
		}
	}
}

// TestImpactLeavesOutPodsThatHaveEnded, and refuses a pod that is named.
func TestImpactLeavesOutPodsThatHaveEnded(t *testing.T) {
	t.Parallel()
	ended, pods := kubelettest.NewPod(), &kubelettest.Pods{}
	ended.Status.Phase = corev1.PodSucceeded
	pods.Set(ended)
	of := func(name, fsType, source, uid string) *volume.Health {
		h := healthyVolume(ended, name)
		h.Evidence.Mount.FSType, h.Evidence.Mount.Source, h.Evidence.Pod.UID = fsType, source, uid
		h.Evidence.Record = &kubelet.VolumeRecord{Driver: "x"}
		return h
	}
	nothing := healthyVolume(ended, "nothing")
	nothing.Evidence.Mount.ID, nothing.Evidence.Pod.UID = 0, "1" // nothing is mounted there
	s := &fakeSurveyor{survey: volume.Survey{Volumes: []*volume.Health{
		of("nfs", "nfs4", "server:/", "1"), of("nbd", "ext4", "/dev/nbd0", "1"), of("fuse", "fuse.x", "x", "1"), of("gone", "fuse.x", "x", string(ended.UID)), nothing,
	}}}
	d := &ImpactDiagnoser{Inspector: s, Pods: podsByUID{string(ended.UID): ended}}
	result, err := d.Run(t.Context(), processor.Request{})
	if err != nil {
		t.Fatal(err)
	}
	var list []fault.MountImpact
	if err := json.Unmarshal([]byte(result.Values[fault.KeyMountImpact]), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]fault.ServedBy{}
	var order []string
	for _, m := range list {
		order, got[m.Volume] = append(order, m.Volume), m.ServedBy
		if m.Driver != "x" || m.Returns == "" {
			t.Errorf("%+v", m)
		}
	}
	want := map[string]fault.ServedBy{"fuse": fault.ServedByDaemon, "nbd": fault.ServedByUnknown, "nfs": fault.ServedByKernel}
	if diff := cmp.Diff(want, got); diff != "" || !cmp.Equal(order, []string{"fuse", "nbd", "nfs"}) {
		t.Errorf("order %q (-want +got):\n%s", order, diff)
	}
	if _, err := d.Run(t.Context(), processor.Request{Pod: processor.Pod{Namespace: "default", Name: "web"}}); !processor.IsStalled(err) {
		t.Errorf("a pod is named: %v", err)
	}
}

// podsByUID are the pods of a node.
type podsByUID map[string]*corev1.Pod

func (p podsByUID) PodByUID(uid string) *corev1.Pod { return p[uid] }
