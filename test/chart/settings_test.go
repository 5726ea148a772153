// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package chart

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"kubediag.org/kubediag/test/cluster"
)

// many sets every value of both programs that a pod shows.
const many = `
imagePullSecrets: [{name: registry}]
commonLabels: {cost: shared, app.kubernetes.io/component: other}
commonAnnotations: {owner: storage}
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
  updateStrategy: {type: Recreate}
  extraEnv: [{name: HTTPS_PROXY, value: "http://proxy"}]
  podSecurityContext: {fsGroup: null, runAsUser: 1000}
  livenessProbe: {periodSeconds: 60}
  volumes: [{name: secret, secret: {secretName: alerts}}]
  volumeMounts: [{name: secret, mountPath: /secret}]
agent:
  image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", tag: unused}
  maxUnavailable: 3
  dataRoot: /data/kubediag
  securityContext: {privileged: false, capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}
  readinessProbe: {timeoutSeconds: 5}
  flags: {workers: 32, enable-scripts: true, sentinel-mode: "Off"}
  tolerations: null
  priorityClassName: ""
  volumes: [{name: authorities, configMap: {name: ca}}]
  volumeMounts: [{name: authorities, mountPath: /ca}]
`

func write(t *testing.T, text string) (file string) {
	t.Helper()
	file = t.TempDir() + "/values.yaml"
	must(t, os.WriteFile(file, []byte(text), 0o600))
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

// common adds the labels and annotations of all objects, which replace none of their own.
func common(metas ...*metav1.ObjectMeta) {
	for _, m := range metas {
		m.Labels["cost"] = "shared"
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations["owner"] = "storage"
	}
}

// managerWithMany makes of the Deployment what many asks for.
func managerWithMany(d *appsv1.Deployment) {
	d.Spec.Replicas = ptr.To[int32](2)
	common(&d.ObjectMeta, &d.Spec.Template.ObjectMeta)
	d.Spec.Template.Labels["team"] = "a"
	d.Spec.Template.Annotations["note"] = "b"
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	pod := &d.Spec.Template.Spec
	pod.SecurityContext.FSGroup, pod.SecurityContext.RunAsUser = nil, ptr.To[int64](1000)
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
	c.Env = append(c.Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy"})
	c.LivenessProbe.PeriodSeconds = 60
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "secret", MountPath: "/secret"})
}

// agentWithMany makes of the DaemonSet what many asks for.
func agentWithMany(d *appsv1.DaemonSet) {
	common(&d.ObjectMeta, &d.Spec.Template.ObjectMeta)
	d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(3))
	pod := &d.Spec.Template.Spec
	pod.Volumes[0].HostPath.Path = "/data/kubediag"
	pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	pod.Tolerations, pod.PriorityClassName = nil, ""
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "authorities", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}},
	}})
	c := &pod.Containers[0]
	c.Image = "localhost/kubediag/agent@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	c.Args = append(c.Args, "--enable-scripts=true", "--sentinel-mode=Off", "--workers=32")
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "authorities", MountPath: "/ca"})
	c.ReadinessProbe.TimeoutSeconds = 5
	c.SecurityContext.Privileged = ptr.To(false)
	c.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}
	c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
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
		"no switch":        {"policies.agentNode=maybe", "at '/policies/agentNode'"},
		"no recovery mode": {"recovery.mode=automatic", "at '/recovery/mode'"},
		"no root":          {"agent.dataRoot=data", "at '/agent/dataRoot'"},
		"no token":         {"components.protectedMetrics=true,monitoring.podMonitor=true,image.registry=localhost/kubediag", "monitoring.tokenSecret.name: protected metrics need the Secret"},
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

// TestMoreObjects holds that the objects which values ask for are as asked, and that each object has the labels of all.
func TestMoreObjects(t *testing.T) {
	t.Parallel()
	all := rendered(t, "elsewhere", append(everything, served, "--values", write(t, `
nameOverride: mounts
commonLabels: {cost: shared}
commonAnnotations: {owner: storage}
recovery: {mode: Automatic, breaker: {failedRepairs: 2}}
networkPolicy: {metricsFrom: [{podSelector: {}}]}
monitoring: {interval: 30s, scrapeTimeout: 9s, relabelings: [{action: labelmap}], metricRelabelings: [{action: keep}]}
manager:
  podDisruptionBudget: {maxUnavailable: 1}
  serviceAccount: {annotations: {role: m}}
agent:
  serviceAccount: {annotations: {role: a}}
  updateStrategy: {type: OnDelete}
`))...)
	for key, o := range all {
		u := unstructured.Unstructured{Object: o}
		if got := u.GetLabels(); got["cost"] != "shared" || got["app.kubernetes.io/name"] != "mounts" || got["helm.sh/chart"] == "" {
			t.Errorf("%s: labels %v", key, got)
		}
		if got := u.GetAnnotations()["owner"]; got != "storage" {
			t.Errorf("%s: annotations %v", key, u.GetAnnotations())
		}
	}
	pods := map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": "mounts"}}
	managers := map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": "mounts", "app.kubernetes.io/component": "manager"}}
	for key, want := range map[string]map[string]any{
		"PodMonitor kubediag": {"selector": pods, "podMetricsEndpoints": []any{map[string]any{
			"port": "metrics", "scheme": "https", "tlsConfig": map[string]any{"insecureSkipVerify": true},
			"authorization": map[string]any{"credentials": map[string]any{"name": "prometheus-token", "key": "token"}}, "interval": "30s", "scrapeTimeout": "9s", "relabelings": []any{map[string]any{"action": "labelmap"}},
			"metricRelabelings": []any{map[string]any{"action": "keep"}},
		}}},
		"NetworkPolicy kubediag": {"podSelector": pods, "policyTypes": []any{"Ingress"}, "ingress": []any{
			map[string]any{"ports": []any{map[string]any{"port": "metrics"}}, "from": []any{map[string]any{"podSelector": map[string]any{}}}},
			map[string]any{"ports": []any{map[string]any{"port": "health"}}},
		}},
		"PodDisruptionBudget kubediag-manager": {"selector": managers, "maxUnavailable": 1.0},
		"RecoveryPolicy kubediag-default": {
			"mode": "Automatic", "breaker": map[string]any{"failedRepairs": 2.0, "maximumNodesPercent": 20.0},
			"budgets": map[string]any{
				"node": map[string]any{"atOnce": 5.0, "perHour": 20.0}, "workload": map[string]any{"atOnce": 1.0, "perHour": 6.0},
				"cluster": map[string]any{"atOnce": 50.0, "perHour": 200.0},
			},
		},
	} {
		if diff := cmp.Diff(want, all[key]["spec"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	var d appsv1.DaemonSet
	remarshal(t, all["DaemonSet kubediag-agent"], &d)
	if diff := cmp.Diff(pods["matchLabels"].(map[string]any)["app.kubernetes.io/name"], any(d.Spec.Template.Labels["app.kubernetes.io/name"])); diff != "" ||
		d.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("DaemonSet: strategy %q, label (-want +got): %s", d.Spec.UpdateStrategy.Type, diff)
	}
	for program, role := range map[string]string{"agent": "a", "manager": "m"} {
		account := unstructured.Unstructured{Object: all["ServiceAccount kubediag-"+program]}
		if got := account.GetAnnotations()["role"]; got != role {
			t.Errorf("ServiceAccount of the %s: annotation %q, want %q", program, got, role)
		}
	}
}

// served has helm know the kinds of kubediag.
const served = "--api-versions=diagnosis.kubediag.org/v1/RecoveryPolicy"

// TestRecoveryMode holds that the policy of a release waits for its kind, and that a mode which repairs nothing has no bounds.
func TestRecoveryMode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want any
	}{
		"no mode":               {[]string{served}, nil},
		"new":                   {settings("recovery.mode=Observe"), nil},
		"off, as YAML reads it": {append(settings("recovery.mode=false"), served), map[string]any{"mode": "Off"}},
		"kind is there":         {append(settings("recovery.mode=Off"), served), map[string]any{"mode": "Off"}},
		"kind of others":        {settings("recovery.mode=Observe", "crds.install=false"), map[string]any{"mode": "Observe"}},
	} {
		if diff := cmp.Diff(c.want, template(t, "kubediag", c.args...)["RecoveryPolicy kubediag-default"]["spec"]); diff != "" {
			t.Errorf("%s: spec (-want +got):\n%s", name, diff)
		}
	}
}

// TestPoliciesFollowTheServer holds that auto leaves out the policies where API servers do not serve them.
func TestPoliciesFollowTheServer(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"1.29.9": false, "1.30.0": true, "v1.33.1-eks-1": true} {
		all := template(t, "kubediag", "--kube-version="+version)
		for _, name := range []string{"kubediag-agent-node", "kubediag-diagnosis-rights"} {
			if got := all["ValidatingAdmissionPolicy "+name] != nil; got != want {
				t.Errorf("%s on Kubernetes %s: %v, want %v", name, version, got, want)
			}
		}
	}
}

// TestRunbookURL holds that each alert which names a fault has the address of its runbook, and only if there is one.
func TestRunbookURL(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "https://example.org/runbook/"} {
		var object struct {
			Spec struct {
				Groups []struct {
					Rules []struct {
						Alert       string
						Annotations map[string]string
					}
				}
			}
		}
		remarshal(t, template(t, "kubediag", settings("monitoring.prometheusRule=true", "monitoring.runbookURL="+base)...)["PrometheusRule kubediag"], &object)
		named := 0
		for _, group := range object.Spec.Groups {
			for _, rule := range group.Rules {
				var want string
				if _, label, ok := strings.Cut(fmt.Sprint(rule.Annotations), "kubectl kubediag explain {{ $labels."); ok {
					label, _, _ = strings.Cut(label, " ")
					named++
					if base != "" {
						want = base + "{{ $labels." + label + " }}.md"
					}
				}
				if got := rule.Annotations["runbook_url"]; got != want {
					t.Errorf("%s: runbook_url %q, want %q", rule.Alert, got, want)
				}
			}
		}
		if named == 0 {
			t.Error("no alert names a fault")
		}
	}
}

// TestExtraObjects holds that more objects are printed as templates, in the namespace that they name.
func TestExtraObjects(t *testing.T) {
	t.Parallel()
	all := template(t, "elsewhere", "--set-json", `extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{{ .Release.Name }}-x","namespace":"other"}}]`)
	want := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "kubediag-x", "namespace": "other"}}
	if diff := cmp.Diff(want, all["ConfigMap kubediag-x"]); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
}

// TestPodOfHelmTestStays: helm test --logs reads the log of the pod after it has deleted the hooks that go when they succeed.
func TestPodOfHelmTestStays(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"Pod kubediag-test": "before-hook-creation", "ServiceAccount kubediag-test": "before-hook-creation,hook-succeeded"} {
		o := &unstructured.Unstructured{Object: rendered(t, "elsewhere")[key]}
		if got := o.GetAnnotations()["helm.sh/hook-delete-policy"]; got != want {
			t.Errorf("%s is deleted at %q, want %q", key, got, want)
		}
	}
}

// TestOpenShift holds that the values for OpenShift give the ServiceAccounts of the release the constraints that their pods need.
func TestOpenShift(t *testing.T) {
	t.Parallel()
	all := rendered(t, "elsewhere", "--values="+root+"/config/integrations/openshift.yaml")
	accounts := map[string][]string{"kubediag-agent": {"kubediag-agent"}, "kubediag-manager": {"kubediag-manager", "kubediag-test"}}
	for account, role := range map[string]string{"kubediag-agent": "system:openshift:scc:privileged", "kubediag-manager": "system:openshift:scc:nonroot-v2"} {
		binding := all["RoleBinding "+account+"-scc"]
		var subjects []any
		for _, name := range accounts[account] {
			subjects = append(subjects, map[string]any{"kind": "ServiceAccount", "name": name, "namespace": "elsewhere"})
			if all["ServiceAccount "+name] == nil {
				t.Errorf("there is no ServiceAccount %s", name)
			}
		}
		if diff := cmp.Diff(subjects, binding["subjects"]); diff != "" {
			t.Errorf("%s: subjects (-want +got):\n%s", account, diff)
		}
		if ref, _ := binding["roleRef"].(map[string]any); ref["name"] != role || ref["kind"] != "ClusterRole" {
			t.Errorf("%s: role %v, want %s", account, ref, role)
		}
	}
}

// TestUnprivileged holds that the values for an agent without "privileged" ask for the capabilities that the agent keeps, and for no others.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(root + "/internal/agent/command.go")
	must(t, err)
	var kept []string
	for _, m := range regexp.MustCompile(`sys\.Cap(\w+),`).FindAllStringSubmatch(string(source), -1) {
		words := regexp.MustCompile(`([a-z]|[A-Z]{3})([A-Z][a-z])`).ReplaceAllString(m[1], "${1}_$2") // DACReadSearch: DAC_READ_SEARCH
		kept = append(kept, strings.ToUpper(words))
	}
	all := template(t, "kubediag", "--values="+root+"/config/integrations/unprivileged.yaml")
	var agent appsv1.DaemonSet
	remarshal(t, all["DaemonSet kubediag-agent"], &agent)
	got := agent.Spec.Template.Spec.Containers[0].SecurityContext
	if got.Privileged == nil || *got.Privileged || !*got.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v", got)
	}
	var asked []string
	for _, c := range got.Capabilities.Add {
		asked = append(asked, string(c))
	}
	slices.Sort(kept)
	slices.Sort(asked)
	if diff := cmp.Diff(kept, asked); diff != "" || len(kept) != 9 {
		t.Errorf("capabilities (-kept +asked for):\n%s", diff)
	}
}
