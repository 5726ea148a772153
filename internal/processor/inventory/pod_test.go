// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

// collectPod returns the detail of a pod, read back.
func collectPod(t *testing.T, pod *corev1.Pod) (detail string, read *corev1.Pod) {
	t.Helper()
	pods := &kubelettest.Pods{}
	pods.Set(pod)
	r := processor.Request{Node: "any", Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name}}
	result, err := (&PodCollector{Pods: pods}).Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	read = &corev1.Pod{}
	detail = result.Values["collector.kubernetes.pod.detail"]
	if err := json.Unmarshal([]byte(detail), read); err != nil {
		t.Fatal(err)
	}
	return detail, read
}

// The detail is the pod, but for the values of variables and arguments, which are marked and counted.
func TestWalkthroughPodStaysAsItIs(t *testing.T) {
	t.Parallel()
	pod := kubelettest.WalkthroughPod(t)
	pod.TypeMeta = metav1.TypeMeta{} // as caches give them out
	detail, read := collectPod(t, pod)
	if !strings.HasPrefix(detail, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"ingress-nginx-ttbms"`) {
		t.Errorf("detail begins %.80q", detail)
	}
	want := kubelettest.WalkthroughPod(t)
	marked := func(n int) []string { return slices.Repeat([]string{"[redacted]"}, n) }
	values := 0
	for _, list := range [][]corev1.Container{want.Spec.InitContainers, want.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for j := range c.Env {
				if c.Env[j].Value != "" {
					c.Env[j].Value = "[redacted]"
					values++
				}
			}
			if c.Args != nil {
				c.Args = marked(len(c.Args))
			}
			if c.Command != nil {
				c.Command = marked(len(c.Command))
			}
		}
	}
	if diff := cmp.Diff(want, read); diff != "" || values != 2 {
		t.Errorf("pod and detail, with %d values (-pod +detail):\n%s", values, diff)
	}
}

// No name of a variable and no form of an argument makes its value show: the code does not guess which are credentials.
func TestNoValueIsCopied(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-V4lue"
	pod := kubelettest.NewPod()
	c := &pod.Spec.Containers[0]
	for _, name := range []string{"DB_PASS", "REDIS_PASS", "PGPASS", "AUTH_KEY", "STRIPE_KEY", "SECRET_KEY_BASE", "TOKEN_VALUE", "GITHUB_PAT", "SNMP_COMMUNITY", "X"} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: secret})
	}
	c.Command = []string{"mysql", "-p" + secret}
	c.Args = []string{"--pass", secret, "-u", "root:" + secret, "jdbc:x?user=a&pass=" + secret, `{"pass":"` + secret + `"}`, "$(X)" + secret}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		Exec:    &corev1.ExecAction{Command: []string{"sh", "-c", secret}},
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz?x=" + secret, HTTPHeaders: []corev1.HTTPHeader{{Name: "X", Value: secret}}},
	}}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x", "--secret=" + secret}}}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "i", Env: c.Env[:1]}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Args: c.Args}}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{VolumeAttributes: map[string]string{"password": secret}}}},
		{Name: "w", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Options: map[string]string{"token": secret}}}},
	}
	pod.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Message: "cannot connect to amqp://user:" + secret + "@mq",
	}}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: secret}}
	pod.Annotations = map[string]string{
		"example.com/config": secret, "evilkubernetes.io/x": secret, "plain": secret, "app.kubernetes.io/kept": "yes it is",
		corev1.LastAppliedConfigAnnotation: `{"x":"` + secret + `"}`,
	}
	before := pod.DeepCopy()
	detail, read := collectPod(t, pod)
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("the pod itself was changed:\n%s", diff)
	}
	if strings.Contains(detail, secret) {
		t.Errorf("a value is in the detail: %s", detail)
	}
	got := &read.Spec.Containers[0]
	if len(got.Env) != 10 || got.Env[0].Name != "DB_PASS" || len(got.Args) != 7 || len(got.Command) != 2 || got.LivenessProbe.HTTPGet.Path != "/healthz?[redacted]" ||
		read.Annotations["app.kubernetes.io/kept"] != "yes it is" || read.Annotations["plain"] != "[redacted]" {
		t.Errorf("what may be shown is not: %s", detail)
	}
}

func TestWhatIsNoCredentialStays(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Annotations = map[string]string{"prometheus.io/scrape": "true", "kubernetes.io/psp": "restricted"}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "SECRET", Value: ""},
		{Name: "API_KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "key"}}},
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: "d", VolumeAttributes: map[string]string{"share": "//server/a", "useToken": "false"},
	}}})
	pod.Status.Message = `MountVolume.SetUp failed for volume "default-token" : secret "foo" not found`
	_, read := collectPod(t, pod)
	if diff := cmp.Diff(pod, read, cmp.Comparer(func(a, b metav1.Time) bool { return a.Unix() == b.Unix() })); diff != "" {
		t.Errorf("pod and detail (-pod +detail):\n%s", diff)
	}
}

func TestPodThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, pod := range map[string]processor.Pod{
		"gone":         {Namespace: "default", Name: "gone"},
		"no name":      {Namespace: "default"},
		"no namespace": {Name: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := (&PodCollector{Pods: &kubelettest.Pods{}}).Run(t.Context(), processor.Request{Pod: pod})
			if err == nil || !processor.IsStalled(err) || !strings.Contains(err.Error(), pod.Name) || !strings.Contains(err.Error(), pod.Namespace) {
				t.Errorf("error %v, want one that names the pod and is not tried again", err)
			}
		})
	}
}

// partialPods are pods of which a cache keeps a part.
type partialPods struct {
	kubelettest.Pods
	fresh *corev1.Pod
}

func (p *partialPods) FreshPod(context.Context, string, string) (*corev1.Pod, error) {
	if p.fresh == nil {
		return nil, errors.New("no answer")
	}
	return p.fresh, nil
}

// TestDetailIsOfTheWholePod: the detail has what the cache does not keep, or there is none.
func TestDetailIsOfTheWholePod(t *testing.T) {
	t.Parallel()
	pod := kubelettest.WalkthroughPod(t)
	part := pod.DeepCopy()
	part.Spec.Containers[0].Image = ""
	pods := &partialPods{fresh: pod}
	pods.Set(part)
	request := processor.Request{Node: "any", Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name}}
	result, err := (&PodCollector{Pods: pods}).Run(t.Context(), request)
	if err != nil || !strings.Contains(result.Values[keyPod], pod.Spec.Containers[0].Image) {
		t.Errorf("detail %.200q, %v", result.Values[keyPod], err)
	}
	pods.fresh = nil
	if result, err := (&PodCollector{Pods: pods}).Run(t.Context(), request); err == nil {
		t.Errorf("detail %.200q, want an error", result.Values[keyPod])
	}
}
