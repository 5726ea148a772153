// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package integrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
)

// warnings collects those that the API server sends with its answers.
type warnings struct{ rules []string }

// HandleWarningHeader keeps the rule that a warning of the policy names.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	if _, message, ours := strings.Cut(text, "with binding 'kubediag-mount-propagation': "); ours {
		rule, _, _ := strings.Cut(message, ": ")
		w.rules = append(w.rules, rule)
	}
}

// mounting is a pod whose container web mounts a volume, as change has it.
func mounting(source corev1.VolumeSource, change func(*corev1.PodSpec)) corev1.PodSpec {
	spec := corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}},
		Containers: []corev1.Container{
			{Name: "web", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		},
	}
	if change != nil {
		change(&spec)
	}
	return spec
}

func hostPath(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

// beside adds a container that mounts file systems in the same volume.
func beside(spec *corev1.PodSpec) {
	both, privileged := corev1.MountPropagationBidirectional, true
	spec.Containers = append(spec.Containers, corev1.Container{
		Name: "fuse", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: &privileged},
		VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", MountPropagation: &both}},
	})
}

func follows(spec *corev1.PodSpec) {
	mode := corev1.MountPropagationHostToContainer
	spec.Containers[0].VolumeMounts[0].MountPropagation = &mode
}

func subPath(path string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.Containers[0].VolumeMounts[0].SubPath = path }
}

// TestAdmissionWarnsAsLintDoes holds that an API server with the policy warns of a workload exactly if lint finds the risk.
func TestAdmissionWarnsAsLintDoes(t *testing.T) {
	t.Parallel()
	apitest.NeedPolicies(t)
	c, err := cluster.Start(t.Context(), cluster.Options{ControlPlane: apitest.Version()})
	must(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	var seen warnings
	config := rest.CopyConfig(c.RESTConfig())
	config.WarningHandler = &seen
	server, err := client.New(config, client.Options{})
	must(t, err)
	for _, object := range apitest.Objects(t, string(readFile(t, "admission.yaml"))) {
		must(t, server.Create(t.Context(), object))
	}
	warned := func(ctx context.Context, object client.Object) []string {
		seen.rules = nil
		if err := server.Create(ctx, object, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", object.GetName(), err)
		}
		slices.Sort(seen.rules)
		return seen.rules
	}
	apitest.Eventually(t, func() error { // the API server learns of a policy after a while
		if len(warned(t.Context(), workloadOf("Pod", "p", mounting(hostPath("/"), nil)))) == 0 {
			return errors.New("no warning of a pod that mounts the root of the node")
		}
		return nil
	})
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	specs := map[string]corev1.PodSpec{
		"empty":       mounting(emptyDir, nil),
		"filled":      mounting(emptyDir, beside),
		"follows":     mounting(hostPath("/"), follows),
		"root":        mounting(hostPath("/"), nil),
		"of-a-part":   mounting(hostPath("/var/lib"), subPath("kubelet/pods")),
		"of-another":  mounting(hostPath("/var/lib"), subPath("docker")),
		"run-filled":  mounting(hostPath("/run/x"), beside),
		"data-filled": mounting(hostPath("/data"), beside),
	}
	for i, dir := range []string{
		"/var", "/var/", "/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/kubelet/pods/x", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins/",
		"/var/lib/kubelet/plugins/x", "/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/plugins_registry", "/var/log", "/variable",
		"/jfs", "/jfs/x", "/jfsx", "/var/lib/juicefs/volume", "/cvmfs", "/runtime-mnt", "/etc",
	} {
		specs[fmt.Sprintf("host-%d", i)] = mounting(hostPath(dir), nil)
	}
	risks := 0
	for name, spec := range specs {
		var want []string
		for _, f := range lint.Check("Pod", "default", name, &spec, lint.Options{KubeletVersion: lint.RenewsSubPaths}) {
			if rule := string(f.Rule); !slices.Contains(want, rule) {
				want = append(want, rule)
			}
		}
		slices.Sort(want)
		risks += len(want)
		for _, kind := range []string{"Pod", "Deployment", "CronJob"} {
			if diff := cmp.Diff(want, warned(t.Context(), workloadOf(kind, name, spec))); diff != "" {
				t.Errorf("%s %s, %+v (-lint +API server):\n%s", kind, name, spec.Volumes[0].VolumeSource, diff)
			}
		}
	}
	if risks < 12 {
		t.Errorf("lint finds %d risks", risks)
	}
}

// workloadOf is a workload of a kind with this pod.
func workloadOf(kind, name string, spec corev1.PodSpec) client.Object {
	meta := metav1.ObjectMeta{Namespace: "default", Name: name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: spec}
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}}
	case "CronJob":
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		job := batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}
		return &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "0 * * * *", JobTemplate: job}}
	}
	return &corev1.Pod{ObjectMeta: meta, Spec: spec}
}
