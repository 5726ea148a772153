// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestSentence(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ status, only, want string }{
		"image": {
			`containerStatuses: [{name: app, state: {waiting: {reason: ImagePullBackOff, message: "Back-off pulling\n image \"x\""}}}]`, "",
			`It is not a mount: the kubelet says ImagePullBackOff about container "app" of pod shop/web: Back-off pulling image "x"`,
		},
		"init container": {
			`{initContainerStatuses: [{name: init, state: {waiting: {reason: ErrImagePull}}}], containerStatuses: [{name: app, state: {waiting: {reason: PodInitializing}}}]}`, "",
			`It is not a mount: the kubelet says ErrImagePull about container "init" of pod shop/web`,
		},
		"crash": {
			`containerStatuses: [{name: app, state: {waiting: {reason: CrashLoopBackOff, message: back-off}}, lastState: {terminated: {exitCode: 137, reason: OOMKilled, startedAt: "2026-01-02T03:04:05Z"}}}]`, "",
			`No mount fault was found: the kubelet says CrashLoopBackOff about container "app" of pod shop/web: it ended with exit code 137 (OOMKilled)`,
		},
		"a start that failed": {
			`containerStatuses: [{name: app, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 128, reason: StartError, message: "mounting failed", startedAt: "2026-01-02T03:04:05Z"}}}]`, "",
			`No mount fault was found: the kubelet says CrashLoopBackOff about container "app" of pod shop/web: it ended with exit code 128 (StartError): mounting failed`,
		},
		"ended": {
			`containerStatuses: [{name: app, state: {terminated: {exitCode: 1, reason: Error, startedAt: "2026-01-02T03:04:05Z"}}}]`, "",
			`No mount fault was found: the kubelet says Error about container "app" of pod shop/web: it ended with exit code 1 (Error)`,
		},
		"scheduler": {
			`{phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/3 nodes are available"}]}`, "",
			`It is not a mount: the scheduler says Unschedulable about pod shop/web: 0/3 nodes are available`,
		},
		"config of no mount": {
			`containerStatuses: [{name: app, state: {waiting: {reason: CreateContainerConfigError, message: 'secret "db" not found'}}}]`, "",
			`It is not a mount: the kubelet says CreateContainerConfigError about container "app" of pod shop/web: secret "db" not found`,
		},
		"config of a subPath": {
			`containerStatuses: [{name: app, state: {waiting: {reason: CreateContainerConfigError, message: 'failed to prepare subPath for volumeMount "cfg" of container "app"'}}}]`, "",
			`No mount fault was found: the kubelet says CreateContainerConfigError about container "app" of pod shop/web: failed to prepare subPath for volumeMount "cfg" of container "app"`,
		},
		"not admitted": {`{phase: Failed, reason: OutOfcpu, message: "no cpu"}`, "", `It is not a mount: the kubelet says OutOfcpu about pod shop/web: no cpu`},
		"evicted":      {`{phase: Failed, reason: Evicted, message: "low on memory"}`, "", `No mount fault was found: the kubelet says Evicted about pod shop/web: low on memory`},
		"two": {
			`containerStatuses: [{name: a, state: {waiting: {reason: ErrImagePull}}}, {name: b, state: {waiting: {reason: CreateContainerError}}}]`, "",
			`No mount fault was found: the kubelet says ErrImagePull about container "a" of pod shop/web; and of 1 more: CreateContainerError`,
		},
		"one of two": {
			`containerStatuses: [{name: a, state: {waiting: {reason: ErrImagePull}}}, {name: b, state: {running: {}}}]`, "b",
			`No mount fault was found: pod shop/web does not wait for anything`,
		},
		"creating": {
			`{phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: ContainerCreating}}}]}`, "",
			`No mount fault was found: the kubelet still creates containers of pod shop/web; kubectl describe pod -n shop web shows what they wait for`,
		},
		"nothing yet": {`{phase: Pending}`, "", `No mount fault was found: the kubelet still creates containers of pod shop/web; kubectl describe pod -n shop web shows what they wait for`},
		"runs":        {`{phase: Running, containerStatuses: [{name: a, state: {running: {}}}]}`, "", `No mount fault was found: pod shop/web does not wait for anything`},
		"succeeded":   {`{phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {exitCode: 0}}}]}`, "", `No mount fault was found: pod shop/web does not wait for anything`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{}
			pod.Namespace, pod.Name = "shop", "web"
			if err := yaml.Unmarshal([]byte(tc.status), &pod.Status); err != nil {
				t.Fatal(err)
			}
			if got := Sentence(pod, tc.only); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Status.Reason, pod.Status.Message = "Evicted", strings.Repeat("é\n", 4000)
	if text := Sentence(pod, ""); len(text) > 400 || !strings.HasSuffix(text, "...") || strings.Contains(text, "\n") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}
