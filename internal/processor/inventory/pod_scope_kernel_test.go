// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package inventory

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
)

// joinPod moves a process into a control group of a pod, as a kubelet names it, until the test ends.
func joinPod(t *testing.T, process *kerneltest.Actor, podUID string) {
	t.Helper()
	group := kerneltest.ControlGroup(t, "kubepods-pod"+strings.ReplaceAll(podUID, "-", "_")+".slice")
	t.Cleanup(process.End)
	kerneltest.JoinControlGroup(t, group, process.PID)
}

// TestCollectsOfThePodOnly: with a pod, the mount table, the mount namespaces and the devices are those of that pod, and without one they
// are those of the node.
func TestCollectsOfThePodOnly(t *testing.T) {
	s := devicetest.New(t, "")
	pods := map[string]processor.Request{"node": {Node: kubelettest.NodeName}}
	for name, uid := range map[string]string{
		"own": devicetest.PodUID, "other": fmt.Sprintf("5e1b6f0a-8c3d-4a57-9a0e-%012d", os.Getpid()),
	} {
		pods[name] = processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: "team", Name: name}}
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: kubelettest.NodeName}}
		pod.Namespace, pod.Name, pod.UID = "team", name, types.UID(uid)
		s.Pods.Set(pod)
		daemon := s.Daemon()
		joinPod(t, daemon, uid)
		ns, err := mountns.Of(daemon.PID)
		kerneltest.Must(t, err)
		for asked, request := range map[string]processor.Request{name: pods[name], "node": pods["node"]} {
			table := mountinfo.Unescape(run(t, &MountTableCollector{Kubelet: s.Node, Pods: s.Pods}, request, keyMountTable))
			if (strings.Contains(table, s.Mount) != (asked != "other")) || strings.Contains(table, s.Global) != (asked == "node") {
				t.Errorf("pod %s, asked about %s: mount table\n%s", name, asked, table)
			}
			var devices []deviceDocument
			decode(t, run(t, &DeviceCollector{Kubelet: s.Node, Pods: s.Pods}, request, keyDevices), &devices)
			listed := slices.ContainsFunc(devices, func(d deviceDocument) bool { return d.Name == s.Device.Name })
			if listed != (asked != "other") || asked != "node" && len(devices) > 1 {
				t.Errorf("pod %s, asked about %s: devices %+v", name, asked, devices)
			}
			var spaces []namespaceDocument
			decode(t, run(t, &NamespaceCollector{Pods: s.Pods}, request, keyNamespaces), &spaces)
			if i := slices.IndexFunc(spaces, func(n namespaceDocument) bool { return n.Namespace == ns.Inode }); i < 0 ||
				!slices.Equal(spaces[i].PIDs, []int{daemon.PID}) || (len(spaces) == 1) != (asked != "node") {
				t.Errorf("pod %s, asked about %s: namespaces %+v", name, asked, spaces)
			}
		}
	}
	result, err := (&MountTableCollector{Kubelet: s.Node, Pods: s.Pods}).Run(t.Context(), processor.Request{Node: "elsewhere", Pod: processor.Pod{Namespace: "team", Name: "gone"}})
	if err == nil || len(result.Values) > 0 {
		t.Errorf("a pod that is gone: %+v, %v", result, err)
	}
}

func run(t *testing.T, c processor.Processor, r processor.Request, key string) string {
	t.Helper()
	result, err := c.Run(t.Context(), r)
	kerneltest.Must(t, err)
	return result.Values[key]
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	kerneltest.Must(t, json.Unmarshal([]byte(text), into))
}
