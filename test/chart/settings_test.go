// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package chart

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"kubediag.org/kubediag/test/cluster"
)

// many sets every value of both programs that a pod shows.
const many = `
imagePullSecrets: [{name: registry}]
manager:
  image: {repository: registry.example.org/manager, tag: v9, pullPolicy: Always}
  replicas: 2
  flags: {diagnosis-ttl: 720h, maximum-diagnoses-per-node: 5000000, alert-secret-file: /secret/token}
  resources: {limits: {memory: 2Gi}}
  nodeSelector: {pool: infra}
  tolerations: [{key: infra, operator: Exists}]
  affinity: {podAntiAffinity: {}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
  priorityClassName: system-cluster-critical
  podLabels: {team: a, app.kubernetes.io/name: other}
  podAnnotations: {note: b}
  volumes: [{name: secret, secret: {secretName: alerts}}]
  volumeMounts: [{name: secret, mountPath: /secret}]
agent:
  image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", tag: unused}
  maxUnavailable: 3
  flags: {workers: 32, enable-scripts: true, sentinel-mode: "Off"}
  tolerations: null
  priorityClassName: ""
  volumes: [{name: authorities, configMap: {name: ca}}]
  volumeMounts: [{name: authorities, mountPath: /ca}]
`

func write(t *testing.T, text string) (file string) {
	t.Helper()
	file = t.TempDir() + "/values.yaml"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestValues holds that each value is in the place that it is for, and that nothing else has changed.
func TestValues(t *testing.T) {
	t.Parallel()
	var deployment, wantDeployment appsv1.Deployment
	var daemonSet, wantDaemonSet appsv1.DaemonSet
	before, after := template(t, "kubediag"), template(t, "kubediag", "--values", write(t, many))
	remarshal(t, before["Deployment kubediag-manager"], &wantDeployment)
	remarshal(t, before["DaemonSet kubediag-agent"], &wantDaemonSet)
	remarshal(t, after["Deployment kubediag-manager"], &deployment)
	remarshal(t, after["DaemonSet kubediag-agent"], &daemonSet)
	managerWithMany(&wantDeployment)
	agentWithMany(&wantDaemonSet)
	if diff := cmp.Diff(wantDeployment, deployment); diff != "" {
		t.Errorf("Deployment (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantDaemonSet, daemonSet); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
}

// managerWithMany makes of the Deployment what many asks for.
func managerWithMany(d *appsv1.Deployment) {
	d.Spec.Replicas = ptr.To[int32](2)
	d.Spec.Template.Labels["team"] = "a"
	d.Spec.Template.Annotations["note"] = "b"
	pod := &d.Spec.Template.Spec
	pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	pod.NodeSelector = map[string]string{"kubernetes.io/os": "linux", "pool": "infra"}
	pod.Tolerations = []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}}
	pod.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}}
	pod.PriorityClassName = "system-cluster-critical"
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "alerts"},
	}})
	c := &pod.Containers[0]
	c.Image, c.ImagePullPolicy = "registry.example.org/manager:v9", corev1.PullAlways
	c.Args = append(c.Args, "--alert-secret-file=/secret/token", "--diagnosis-ttl=720h", "--maximum-diagnoses-per-node=5000000")
	c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("2Gi")
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "secret", MountPath: "/secret"})
}

// agentWithMany makes of the DaemonSet what many asks for.
func agentWithMany(d *appsv1.DaemonSet) {
	d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(3))
	pod := &d.Spec.Template.Spec
	pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	pod.Tolerations, pod.PriorityClassName = nil, ""
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "authorities", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}},
	}})
	c := &pod.Containers[0]
	c.Image = "localhost/kubediag/agent@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	c.Args = append(c.Args, "--enable-scripts=true", "--sentinel-mode=Off", "--workers=32")
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "authorities", MountPath: "/ca"})
}

// TestRegistry holds that the registry of all charts goes before that of this one, and a whole name before both.
func TestRegistry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []string
		want   string
	}{
		"of the chart":   {[]string{"image.registry=registry.example.org/k"}, "registry.example.org/k/agent:v9"},
		"of all charts":  {[]string{"image.registry=registry.example.org/k", "global.imageRegistry=mirror.example.org"}, "mirror.example.org/agent:v9"},
		"a whole name":   {[]string{"agent.image.repository=other.example.org/a", "global.imageRegistry=mirror.example.org"}, "other.example.org/a:v9"},
		"only of charts": {[]string{"image.registry=", "global.imageRegistry=mirror.example.org"}, "mirror.example.org/agent:v9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d appsv1.DaemonSet
			remarshal(t, template(t, "kubediag", settings(append(c.values, "agent.image.tag=v9")...)...)["DaemonSet kubediag-agent"], &d)
			if got := d.Spec.Template.Spec.Containers[0].Image; got != c.want {
				t.Errorf("image %q, want %q", got, c.want)
			}
		})
	}
}

// TestSchemaRefuses holds that a wrong value is refused by its name.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ value, want string }{
		"unknown":          {"evict=true", "'evict' not allowed"},
		"unknown below":    {"components.evict=true", "at '/components': additional properties 'evict' not allowed"},
		"no boolean":       {"components.eviction=yes", "at '/components/eviction': got string, want boolean"},
		"no number":        {"manager.replicas=two", "at '/manager/replicas': got string, want integer"},
		"unknown flag":     {"agent.flags.worker=3", "at '/agent/flags': additional properties 'worker' not allowed"},
		"flag of a switch": {"agent.flags.allow-eviction=true", "additional properties 'allow-eviction' not allowed"},
		"no duration":      {"manager.flags.diagnosis-ttl=10d", "at '/manager/flags/diagnosis-ttl': '10d'"},
		"no mode":          {"agent.flags.sentinel-mode=off", "at '/agent/flags/sentinel-mode'"},
		"no digest":        {"agent.image.digest=latest", "at '/agent/image/digest': 'latest'"},
		"no registry":      {"agent.image.tag=v1", "image.registry: set the registry that has the images"},
		"half a registry":  {"image.registry=registry.example.org/", "at '/image/registry'"},
		"no policy":        {"manager.image.pullPolicy=Sometimes", "at '/manager/image/pullPolicy'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := call(t, cluster.Helm, "", append([]string{"template", chartDir}, settings(c.value)...)...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
