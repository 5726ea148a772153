// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	idA = strings.Repeat("0a1b2c3d", 8)
	idB = strings.Repeat("f9e8d7c6", 8)
)

const (
	podSlice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod29da79e5_386c_4e0d_82c1_215f93ff955d.slice"
	podGroup = "/kubepods/burstable/pod29da79e5-386c-4e0d-82c1-215f93ff955d/"
)

// cgroups are texts of /proc/PID/cgroup, and the containers that they name.
var cgroups = map[string]struct {
	text string
	want []string
}{
	"docker, v1, cgroupfs":     {"12:pids:/docker/" + idA + "\n1:name=systemd:/docker/" + idA + "\n", []string{idA}},
	"docker, v2, systemd":      {"0::/system.slice/docker-" + idA + ".scope\n", []string{idA}},
	"dockershim, v1, cgroupfs": {"11:memory:" + podGroup + idA + "\n0::/system.slice/containerd.service\n", []string{idA}},
	"dockershim, v1, systemd":  {"11:memory:" + podSlice + "/docker-" + idA + ".scope\n", []string{idA}},
	"containerd, v1, cgroupfs": {"4:cpu,cpuacct:" + podGroup + idA + "\n0::/\n", []string{idA}},
	"containerd, guaranteed":   {"0::/kubepods/pod29da79e5-386c-4e0d-82c1-215f93ff955d/" + idA, []string{idA}},
	"containerd, v2, systemd":  {"0::" + podSlice + "/cri-containerd-" + idA + ".scope\n", []string{idA}},
	"containerd, systemd in the kubelet alone": {
		"4:devices:/system.slice/containerd.service/kubepods-burstable-pod29da.slice:cri-containerd:" + idA + "\n", []string{idA},
	},
	"containerd, the name for systemd as a path": {"0::/kubepods-besteffort-pod29da.slice:cri-containerd:" + idA + "\n", []string{idA}},
	"ctr":                            {"0::/k8s.io/" + idA + "\n", []string{idA}},
	"cri-o, v2, systemd":             {"0::" + podSlice + "/crio-" + idA + ".scope\n", []string{idA}},
	"cri-o, crun puts it one deeper": {"0::" + podSlice + "/crio-" + idA + ".scope/container\n", []string{idA}},
	"cri-o, v1, cgroupfs":            {"3:pids:" + podGroup + "crio-" + idA + "\n", []string{idA}},
	"systemd in a container":         {"0::" + podSlice + "/cri-containerd-" + idA + ".scope/init.scope\n", []string{idA}},
	"kind": {
		"0::/docker/" + idA + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod29da.slice/cri-containerd-" + idB + ".scope\n", []string{idA, idB},
	},
	"kind, v1":                        {"5:memory:/docker/" + idA + "/kubelet/kubepods/burstable/pod29da/" + idB + "\n", []string{idA, idB}},
	"docker in a pod":                 {"0::" + podSlice + "/cri-containerd-" + idA + ".scope/docker/" + idB + "\n", []string{idA, idB}},
	"the same twice":                  {"0::/docker/" + idA + "/docker/" + idA + "\n", []string{idA}},
	"from another cgroup namespace":   {"0::/../../kubepods-pod29da.slice/cri-containerd-" + idA + ".scope\n", []string{idA}},
	"cgroup is removed":               {"0::" + podSlice + "/cri-containerd-" + idA + ".scope (deleted)\n", []string{idA}},
	"first hierarchy knows nothing":   {"13:rdma:/\n12:misc:/init.scope\n1:name=systemd:" + podGroup + idA + "\n0::/\n", []string{idA}},
	"host":                            {"1:name=systemd:/init.scope\n0::/init.scope\n", nil},
	"kubelet":                         {"0::/system.slice/kubelet.service\n", nil},
	"shim":                            {"0::/system.slice/containerd.service\n", nil},
	"pod but no container":            {"0::" + podSlice + "\n", nil},
	"conmon":                          {"0::/system.slice/crio-conmon-" + idA + ".scope\n", nil},
	"conmon, cgroupfs":                {"0::" + podGroup + "crio-conmon-" + idA + "\n", nil},
	"somebody's own prefix":           {"0::/user.slice/evil-" + idA + ".scope\n", nil},
	"one digit short":                 {"0::/docker/" + idA[1:] + "\n", nil},
	"one digit long":                  {"0::/docker/0" + idA + "\n", nil},
	"capitals":                        {"0::/docker/" + strings.ToUpper(idA) + "\n", nil},
	"no digits":                       {"0::/docker/" + strings.Repeat("z", idLength) + "\n", nil},
	"cut":                             {"0::/docker/" + idA[:40], nil},
	"cut in the middle of the fields": {"0:", nil},
	"empty":                           {"", nil},
}

func TestContainerIDs(t *testing.T) {
	t.Parallel()
	for name, c := range cgroups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, ContainerIDs(c.text)); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
			id, ok := ContainerID(c.text)
			if ok != (len(c.want) > 0) || ok && id != c.want[len(c.want)-1] {
				t.Errorf("innermost is %q, %v", id, ok)
			}
		})
	}
}

func FuzzContainerIDs(f *testing.F) {
	for _, c := range cgroups {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, id := range ContainerIDs(text) {
			if len(id) != idLength || strings.Trim(id, "0123456789abcdef") != "" || !strings.Contains(text, id) {
				t.Errorf("id %q", id)
			}
		}
	})
}
