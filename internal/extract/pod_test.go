// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package extract

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/podstatus"
	"kubediag.org/kubediag/test/growthtest"
)

// field is a variable of the downward API.
func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// fullPod has something in every part that is read, and much in those that are not.
func fullPod() *corev1.Pod {
	controller, always := true, corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "p", UID: "u-1", ResourceVersion: "7", Labels: map[string]string{"app": "web", "pod-template-hash": "abc"},
		Annotations: map[string]string{
			v1.AnnotationRecovery: "off", "kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "m", "note": strings.Repeat("n", 200<<10),
		},
		Finalizers:      []string{"a/b"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "o", Controller: &controller}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", 1<<10)}},
	}}
	pod.Spec.NodeName, pod.Spec.RestartPolicy, pod.Spec.ServiceAccountName = "n1", corev1.RestartPolicyAlways, "robot"
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.1", HostIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd::1"}},
		Conditions:            []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", ContainerID: "cri://1", Image: "much", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: "no"}},
		}},
	}
	kind := corev1.HostPathSocket
	for name, source := range map[string]corev1.VolumeSource{
		"claim": {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}},
		"host":  {HostPath: &corev1.HostPathVolumeSource{Path: "/run/x.sock", Type: &kind}},
		"conf":  {ConfigMap: &corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "k", Path: strings.Repeat("p", 100)}}}},
		"csi":   {CSI: &corev1.CSIVolumeSource{Driver: "d", ReadOnly: &controller, VolumeAttributes: map[string]string{"a": strings.Repeat("v", 100<<10)}}},
		"temp":  {Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
	slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	env := []corev1.EnvVar{
		field("NAME", "metadata.name"), field("SPACE", "metadata.namespace"), field("UID", "metadata.uid"), field("NODE", "spec.nodeName"),
		field("ROBOT", "spec.serviceAccountName"), field("IP", "status.podIP"), field("IPS", "status.podIPs"), field("HOST", "status.hostIP"),
		field("APP", "metadata.labels['app']"), field("NOTE", "metadata.annotations['note']"),
		{Name: "PLAIN", Value: "x-$(NAME)"}, {Name: "BIG", Value: strings.Repeat("e", 300<<10)},
		{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}},
	}
	var mounts []corev1.VolumeMount
	for i, expr := range []string{
		"$(NAME)/$(SPACE)", "$(UID)", "$(NODE)-$(ROBOT)", "$(IP)", "$(IPS)", "$(HOST)", "$(APP)", "$(PLAIN)", "$(SECRET)", "$(MISSING)/a", "$$(NAME)",
		"../$(NAME)", "/$(NAME)", "plain",
	} {
		mounts = append(mounts, corev1.VolumeMount{Name: "claim", MountPath: fmt.Sprint("/m", i), SubPathExpr: expr})
	}
	mounts = append(mounts, corev1.VolumeMount{Name: "conf", MountPath: "/c", SubPath: "k", ReadOnly: true})
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", RestartPolicy: &always, Env: env, VolumeMounts: mounts[:2]}}
	pod.Spec.Containers = []corev1.Container{{
		Name: "app", Image: "i", Args: []string{strings.Repeat("a", 100<<10)}, Env: env, VolumeMounts: mounts,
		VolumeDevices: []corev1.VolumeDevice{{Name: "temp", DevicePath: "/dev/x"}},
	}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: env, VolumeMounts: mounts[1:3]}}}
	return pod
}

// answers are the facts that the agent reads from a pod.
func answers(pod *corev1.Pod) map[string]any {
	all := map[string]any{
		"owner": kubelet.WorkloadOf(pod), "claims": podinfo.Claims(pod), "containers": podinfo.ContainerNames(pod), "state": podinfo.StateOf(pod),
		"sentence": podstatus.Sentence(pod, ""), "labels": pod.Labels, "off": pod.Annotations[v1.AnnotationRecovery], "finalizers": pod.Finalizers,
		"mirror": pod.Annotations[corev1.MirrorPodAnnotationKey], "hash": pod.Annotations["kubernetes.io/config.hash"],
		"devices": pod.Spec.Containers[0].VolumeDevices,
	}
	for _, name := range podinfo.ContainerNames(pod) {
		state, why := podinfo.RestartStateOf(pod, name)
		status, _ := podinfo.ContainerStatus(pod, name)
		all[name] = []any{state, why, podinfo.DescribeStatus(status), status.ContainerID, podinfo.DetailsOf(pod, name)}
	}
	for _, m := range podinfo.SubPathMounts(pod) {
		all[fmt.Sprint(m.Container, m.Index)] = []any{podinfo.SubPathName(pod, m), m.Mount.SubPathExpr, m.Mount.MountPath, m.Mount.ReadOnly,
			podinfo.KubeletPlugin(m.Volume), podinfo.FromClaim(m.Volume)}
	}
	for _, v := range pod.Spec.Volumes {
		all["volume "+v.Name] = []any{v.HostPath, v.PersistentVolumeClaim, podinfo.KubeletPlugin(v), v.CSI != nil && *v.CSI.ReadOnly, v.Ephemeral != nil}
	}
	return all
}

// TestPodKeepsAllThatIsRead: the part gives the same answers as the pod, and is small.
func TestPodKeepsAllThatIsRead(t *testing.T) {
	t.Parallel()
	pod := fullPod()
	want := answers(fullPod())
	kept := Pod(pod)
	if diff := cmp.Diff(want, answers(kept)); diff != "" {
		t.Errorf("(-pod +kept):\n%s", diff)
	}
	if diff := cmp.Diff(fullPod(), pod); diff != "" {
		t.Errorf("the pod was changed:\n%s", diff)
	}
	if n := kept.Size(); n > 8<<10 || Large(kept) {
		t.Errorf("%d of %d bytes are kept", n, pod.Size())
	}
	if diff := cmp.Diff(kept, Pod(kept)); diff != "" {
		t.Errorf("a part that is reduced once more differs:\n%s", diff)
	}
}

// TestPodIsBounded: no field makes the part of a pod larger than its bound.
func TestPodIsBounded(t *testing.T) {
	t.Parallel()
	text, many := strings.Repeat("x", 1200<<10), 4000
	for name, grow := range map[string]func(*corev1.Pod){
		"env":       func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Value: text}} },
		"mountPath": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].MountPath = text },
		"subPath":   func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = text },
		"expanded": func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: text}}
			p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(A)"
		},
		"hostPath": func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: text}}
		},
		"attributes": func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{VolumeAttributes: map[string]string{"a": text}}}
		},
		"portals": func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{Portals: make([]string, many)}}
		},
		"mounts":      func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = make([]corev1.VolumeMount, many) },
		"devices":     func(p *corev1.Pod) { p.Spec.Containers[0].VolumeDevices = make([]corev1.VolumeDevice, many) },
		"volumes":     func(p *corev1.Pod) { p.Spec.Volumes = make([]corev1.Volume, many) },
		"containers":  func(p *corev1.Pod) { p.Spec.Containers = make([]corev1.Container, many) },
		"init":        func(p *corev1.Pod) { p.Spec.InitContainers = make([]corev1.Container, many) },
		"ephemeral":   func(p *corev1.Pod) { p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, many) },
		"statuses":    func(p *corev1.Pod) { p.Status.ContainerStatuses = make([]corev1.ContainerStatus, many) },
		"message":     func(p *corev1.Pod) { p.Status.Message = text },
		"conditions":  func(p *corev1.Pod) { p.Status.Conditions = make([]corev1.PodCondition, many) },
		"owners":      func(p *corev1.Pod) { p.OwnerReferences = make([]metav1.OwnerReference, many) },
		"an owner":    func(p *corev1.Pod) { p.OwnerReferences[0].Name = text },
		"finalizers":  func(p *corev1.Pod) { p.Finalizers = make([]string, many) },
		"recovery":    func(p *corev1.Pod) { p.Annotations[v1.AnnotationRecovery] = text },
		"annotations": func(p *corev1.Pod) { p.Annotations["kubernetes.io/config.mirror"] = text },
		"labels": func(p *corev1.Pod) {
			for i := range many {
				p.Labels[fmt.Sprint("l", i)] = "x"
			}
		},
	} {
		for phase, most := range map[corev1.PodPhase]int{corev1.PodRunning: maxBytes, corev1.PodFailed: maxEndedBytes} {
			pod := fullPod()
			grow(pod)
			pod.Status.Phase = phase
			kept := Pod(pod)
			if weight := weigh(kept); weight > most && !Large(kept) || weight > maxBytes {
				t.Errorf("%s, %s: %d bytes", name, phase, weight)
			}
			if kept.UID != pod.UID || kept.Name != pod.Name || kept.Namespace != pod.Namespace || kept.Spec.NodeName != "n1" || kept.Status.Phase != phase {
				t.Errorf("%s, %s: kept %+v", name, phase, kept)
			}
			if again := Pod(kept); Large(again) != Large(kept) {
				t.Errorf("%s, %s: reduced once more, large is %t", name, phase, Large(again))
			}
		}
	}
}

// TestPodThatGoesIsKept: a dead mount may be all that keeps a pod that has ended and is being deleted.
func TestPodThatGoesIsKept(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", DeletionTimestamp: &now}}
	pod.Status.Phase = corev1.PodFailed
	for _, name := range []corev1.PodConditionType{"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: name, Status: "False", Message: strings.Repeat("m", 60)})
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ContainerID: strings.Repeat("c", 77)}}
	for i := range 4 {
		c := corev1.Container{Name: fmt.Sprint("container-", i)}
		for j := range 8 {
			volume := corev1.Volume{Name: fmt.Sprint("volume-", i, "-", j)}
			volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
			if i == 0 {
				pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/some/path/of/it", SubPath: "sub"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, ContainerID: strings.Repeat("c", 77), State: ended, LastTerminationState: ended,
		})
	}
	if kept := Pod(pod); Large(kept) || len(kept.Spec.Volumes) != 8 || len(kept.Spec.Containers[3].VolumeMounts) != 8 {
		t.Errorf("of %d bytes is kept: %+v", weigh(pod), kept)
	}
	pod.DeletionTimestamp = nil
	if kept := Pod(pod); !Large(kept) {
		t.Error("all of a pod is kept that has ended and stays")
	}
}

// TestVariablesOfAPodAreBounded: a tenant may give a pod as many variables as mounts, each of which needs them, and a variable that has the one before
// twice. Neither the time nor the memory of the cache grows with their square.
func TestVariablesOfAPodAreBounded(t *testing.T) {
	growthtest.Check(t, 500, func(n int) func() {
		var c corev1.Container
		c.Name, c.Env = "c", []corev1.EnvVar{{Name: "A0", Value: "x"}}
		for i := range n {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("A", i+1), Value: fmt.Sprintf("$(A%d)$(A%[1]d)", i)})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", SubPathExpr: fmt.Sprintf("$(A%d)", i)})
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
		return func() {
			if kept := Pod(pod).Spec.Containers; len(kept) > 0 && (kept[0].VolumeMounts[1].SubPath != "xx" || kept[0].VolumeMounts[n-1].SubPath != "") {
				t.Errorf("mounts are kept as %+v and %+v", kept[0].VolumeMounts[1], kept[0].VolumeMounts[n-1])
			}
		}
	})
}
