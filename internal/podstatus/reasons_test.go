// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReasonsBeforeMounts are all that say by themselves that a mount is not the cause, and no others.
func TestReasonsBeforeMounts(t *testing.T) {
	t.Parallel()
	want := []string{
		"ErrImageNeverPull", "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable",
		"SecurityProfileInvalid", "SignatureValidationFailed", "VerifyNonRootError",
	}
	for reason := range waitingReasons {
		pod := waitingPod(reason, "text of no kind")
		if got := Why(pod, "")[0].Other; got != slices.Contains(want, reason) {
			t.Errorf("%s: before mounts: %v", reason, got)
		}
	}
	for _, reason := range []string{"ANewReason", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"} {
		if Why(waitingPod(reason, "text"), "")[0].Other {
			t.Errorf("%s is said to be no mount", reason)
		}
	}
	for reason, want := range map[string]bool{
		"OutOfmemory": true, "OutOfnvidia.com/gpu": true, "NodeAffinity": true, "UnexpectedAdmissionError": true, "AppArmor": true,
		"Evicted": false, "DeadlineExceeded": false, "Preempting": false, "Terminated": false, "ANewReason": false,
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Reason: reason}}
		if got := Why(pod, "")[0].Other; got != want {
			t.Errorf("%s of a pod: before mounts: %v, want %v", reason, got, want)
		}
	}
}

func waitingPod(reason, message string) *corev1.Pod {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	return &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "app", State: state}}}}
}

// TestConfigErrors: the kubelet has one reason for the environment, the user, subPaths and hostPaths.
func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		`secret "x" not found`:                                                                       true,
		"configmap \"x\"\n not found":                                                                true,
		`secrets "x" is forbidden: User "n" cannot get it`:                                           true,
		`couldn't find key a.b in ConfigMap shop/x`:                                                  true,
		`couldn't find key p in Secret shop/x`:                                                       true,
		`failed to sync configmap cache: timed out waiting for the condition`:                        true,
		`object "shop"/"x" not registered`:                                                           true,
		`services have not yet been read at least once, cannot construct envvars`:                    true,
		`container has runAsNonRoot and image will run as root (pod: "web_shop(1)", container: app)`: true,
		`container has runAsNonRoot and image has non-numeric user (node), cannot verify user is non-root (pod: "w_s(1)", container: app)`: true,
		`container's runAsUser breaks non-root policy (pod: "web_shop(1)", container: app)`:                                                true,
		`couldn't get secret shop/x, no kubeClient defined`:                                                                                true,
		`couldn't get configMap shop/x, no kubeClient defined`:                                                                             true,
		`failed to list services when setting up env vars`:                                                                                 true,
		`unsupported supplementalGroupsPolicy: Strict`:                                                                                     true,
		`unable to find target container "app"`:                                                                                            true,

		`failed to prepare subPath for volumeMount "cfg" of container "app"`:              false,
		`failed to create subPath directory for volumeMount "cfg" of container "app"`:     false,
		`stat /srv/data: no such file or directory`:                                       false,
		`lstat /var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/p/mount: host is down`:   false,
		`cannot find volume "cfg" to mount into container "app"`:                          false,
		`cannot find the volume "cfg" referenced by FileKeyRef`:                           false,
		`environment variable key "k" not found in file "secret \"x\" not found"`:         false,
		`stat /srv/secret "x" not found`:                                                  false,
		`secret "x" not found: failed to prepare subPath for volumeMount "y"`:             false,
		`failed to generate container "c" spec: failed to stat "/srv/data": no such file`: false,
		`failed to resolve recursive read-only mode: volume "v" requested it`:             false,
		`hostPath type check failed: /var/run/docker.sock is not a socket file`:           false,
		`some text that is not known`:                                                     false,
		``:                                                                                false,
	} {
		if got := Why(waitingPod("CreateContainerConfigError", message), "")[0].Other; got != want {
			t.Errorf("%q: no mount: %v, want %v", message, got, want)
		}
	}
}

// TestReasonsOfKubelets: the table has each error that a kubelet gives as the reason of a waiting container, and few others.
func TestReasonsOfKubelets(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/kubelet-reasons.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"SecurityProfileInvalid": true} // of no release in the file
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] != "#" {
			release, reason := fields[0], fields[3]
			if seen[reason] = true; !hasReason(reason) {
				t.Errorf("the table lacks %s of %s", reason, release)
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d reasons were read", len(seen))
	}
	for reason := range waitingReasons {
		if !seen[reason] {
			t.Errorf("no kubelet gives the reason %s", reason)
		}
	}
}

func hasReason(reason string) bool {
	_, ok := waitingReasons[reason]
	return ok
}
