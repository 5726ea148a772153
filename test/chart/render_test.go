// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package chart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/test/cluster"
)

// call runs helm or kubectl with a kubeconfig, if there is one, and returns what it writes.
func call(t *testing.T, build func(context.Context) (string, error), kubeconfig string, args ...string) (string, error) {
	t.Helper()
	program, err := build(t.Context())
	must(t, err)
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%q: %w\n%s", args, err, out)
	}
	return string(out), err
}

// objects are the objects of manifests, by kind and name.
type objects map[string]map[string]any

func (o objects) add(t *testing.T, text string) {
	t.Helper()
	for document, err := range manifests.Documents([]byte(text)) {
		var object unstructured.Unstructured
		if err := errors.Join(err, yaml.Unmarshal(document.Text, &object.Object)); err != nil {
			t.Fatalf("%v\n%s", err, document.Text)
		}
		key := object.GetKind() + " " + object.GetName()
		if o[key] != nil {
			t.Errorf("there is more than one %s", key)
		}
		o[key] = object.Object
	}
}

// template are the objects that helm makes of the chart, without hooks.
func template(t *testing.T, namespace string, args ...string) objects {
	t.Helper()
	all := rendered(t, namespace, args...)
	maps.DeleteFunc(all, func(_ string, o map[string]any) bool { return hook(o) != "" })
	return all
}

// hook is the time when helm makes an object that is none of the release.
func hook(o map[string]any) string {
	return (&unstructured.Unstructured{Object: o}).GetAnnotations()["helm.sh/hook"]
}

// rendered are all objects that helm makes of the chart.
func rendered(t *testing.T, namespace string, args ...string) objects {
	t.Helper()
	return renderedBy(t, cluster.Helm, namespace, args...)
}

// renderedBy are those that one version of helm makes.
func renderedBy(t *testing.T, helm func(context.Context) (string, error), namespace string, args ...string) objects {
	t.Helper()
	out, err := call(t, helm, "", append([]string{"template", "kubediag", chartDir, "--namespace", namespace, loaded,
		"--kube-version", cluster.Kubernetes137}, args...)...)
	must(t, err)
	all := objects{}
	all.add(t, out)
	return all
}

// policies are the files of config that the chart installs by default where the API server serves them.
var policies = []string{"policy/agent-node.yaml", "policy/diagnosis-rights.yaml"}

// labels are those that the chart gives to every object.
var labels = map[string]string{
	"app.kubernetes.io/name": "kubediag", "app.kubernetes.io/instance": "kubediag", "app.kubernetes.io/part-of": "kubediag",
	"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/version": "v0.1.0", "helm.sh/chart": "kubediag-0.1.0",
}

// kustomize are the objects that kubectl makes of a directory, and those of more files, as the chart should have them.
func kustomize(t *testing.T, dir string, files ...string) objects {
	t.Helper()
	out, err := call(t, cluster.Kubectl, "", "kustomize", dir)
	must(t, err)
	all := objects{}
	all.add(t, out)
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, "config", file))
		must(t, err)
		all.add(t, string(text))
	}
	for key, o := range all {
		switch o["kind"] {
		case "Namespace": // it is Helm's
			delete(all, key)
		case "CustomResourceDefinition":
			must(t, unstructured.SetNestedField(o, "keep", "metadata", "annotations", "helm.sh/resource-policy"))
		}
		u := unstructured.Unstructured{Object: o}
		own := u.GetLabels()
		if own == nil {
			own = map[string]string{}
		}
		maps.Copy(own, labels)
		u.SetLabels(own)
	}
	return all
}

// loaded has the chart name the images that make image makes, and that nodes have loaded.
const loaded = "--set=image.registry=localhost/kubediag"

// settings makes arguments of helm.
func settings(values ...string) (args []string) {
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// TestChartIsConfig compares each object with that of config: by default, and with each switch.
func TestChartIsConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []string
		dir    string
		files  []string
	}{
		"default":    {dir: "default", files: policies},
		"no kinds":   {[]string{"crds.install=false"}, "default", policies},
		"none":       {[]string{"policies.agentNode=off", "policies.diagnosisRights=false"}, "default", nil},
		"eviction":   {[]string{"components.eviction=true"}, "overlays/eviction", policies},
		"escalation": {[]string{"components.eviction=true", "components.cordon=true"}, "overlays/escalation", policies},
		"receiver":   {[]string{"components.alertReceiver=true"}, "overlays/alert-receiver", policies},
		"protected":  {[]string{"components.protectedMetrics=true"}, "overlays/protected-metrics", policies},
		"node":       {[]string{"policies.diagnosisRights=off"}, "default", policies[:1]},
		"rights":     {[]string{"policies.agentNode=off", "policies.diagnosisRights=on"}, "default", policies[1:]},
		"critical":   {[]string{"policies.criticalPods=true"}, "default", append(policies, "policy/critical-pods.yaml")},
		"rules":      {[]string{"monitoring.prometheusRule=true"}, "default", append(policies, "alerts/prometheusrule.yaml")},
		"monitor":    {[]string{"monitoring.podMonitor=true"}, "default", append(policies, "alerts/podmonitor.yaml")},
		"network":    {[]string{"networkPolicy.enabled=true"}, "default", append(policies, "components/network-policy/network_policy.yaml")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := kustomize(t, filepath.Join(root, "config", c.dir), c.files...)
			if name == "no kinds" {
				maps.DeleteFunc(want, func(_ string, o map[string]any) bool { return o["kind"] == "CustomResourceDefinition" })
			}
			if diff := cmp.Diff(want, template(t, "kubediag", settings(c.values...)...)); diff != "" {
				t.Errorf("objects (-config +chart):\n%s", diff)
			}
		})
	}
}

// TestNamespaceOfRelease compares the chart in another namespace, with all components, with what kustomize makes of the same.
func TestNamespaceOfRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string {
		from, err := filepath.Abs(filepath.Join(root, "config", name))
		if err == nil {
			from, err = filepath.Rel(dir, from)
		}
		must(t, err)
		return from
	}
	text, err := json.Marshal(map[string]any{
		"namespace": "elsewhere", "resources": []string{at("default")},
		"components": []string{at("components/eviction"), at("components/cordon"), at("components/alert-receiver"), at("components/protected-metrics")},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600))
	components := settings("policies.agentNode=off", "policies.diagnosisRights=off", "components.eviction=true", "components.cordon=true", "components.alertReceiver=true", "components.protectedMetrics=true")
	if diff := cmp.Diff(kustomize(t, dir), template(t, "elsewhere", components...)); diff != "" {
		t.Errorf("objects (-config +chart):\n%s", diff)
	}
}

// TestNamespaceInTexts holds that what names the namespace in a text names that of the release.
func TestNamespaceInTexts(t *testing.T) {
	t.Parallel()
	all := template(t, "elsewhere", everything...)
	text, err := json.Marshal(all)
	must(t, err)
	for _, wrong := range []string{`"namespace":"kubediag"`, "serviceaccount:kubediag:", "-n kubediag", "namespace kubediag", "kubediag.svc"} {
		if strings.Contains(string(text), wrong) {
			t.Errorf("there is %q in namespace elsewhere", wrong)
		}
	}
	for _, right := range []string{"system:serviceaccount:elsewhere:kubediag-agent", "system:serviceaccount:elsewhere:kubediag-manager", "-n elsewhere "} {
		if !strings.Contains(string(text), right) {
			t.Errorf("there is no %q in namespace elsewhere", right)
		}
	}
}

// everything switches everything on.
var everything = settings("components.eviction=true", "components.cordon=true", "components.alertReceiver=true", "policies.criticalPods=true", "networkPolicy.enabled=true", "monitoring.prometheusRule=true", "monitoring.podMonitor=true",
	"components.protectedMetrics=true", "monitoring.tokenSecret.name=prometheus-token", "monitoring.dashboard=true", "monitoring.labels.release=prometheus")

// TestEveryFileIsInstalled holds that no file of config lies in the chart unused.
func TestEveryFileIsInstalled(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(chartDir, "config", "*", "*.yaml"))
	must(t, err)
	below, err := filepath.Glob(filepath.Join(chartDir, "config", "*", "*", "*.yaml"))
	must(t, err)
	installed := template(t, "kubediag", everything...)
	for _, file := range append(files, below...) {
		text, err := os.ReadFile(file)
		must(t, err)
		all := objects{}
		all.add(t, string(text))
		for key := range all {
			if installed[key] == nil {
				t.Errorf("%s: no template prints %s", file, key)
			}
		}
	}
	for _, kind := range []string{"PodMonitor", "PrometheusRule"} {
		if metadata := fmt.Sprint(installed[kind+" kubediag"]["metadata"]); !strings.Contains(metadata, "release:prometheus") {
			t.Errorf("%s: no label of the values in %s", kind, metadata)
		}
	}
}

// TestDashboard holds that the ConfigMap has the dashboard of config and the labels of the values.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var got corev1.ConfigMap
	remarshal(t, template(t, "kubediag", "--set=monitoring.dashboard=true", "--set-string=monitoring.dashboardLabels.team=a")["ConfigMap kubediag-dashboard"], &got)
	want, err := os.ReadFile(filepath.Join(root, "config", "dashboards", "kubediag.json"))
	must(t, err)
	if diff := cmp.Diff(strings.TrimSpace(string(want)), strings.TrimSpace(got.Data["kubediag.json"])); diff != "" {
		t.Errorf("dashboard (-config +chart):\n%s", diff)
	}
	wanted := maps.Clone(labels)
	maps.Copy(wanted, map[string]string{"grafana_dashboard": "1", "team": "a"})
	if diff := cmp.Diff(wanted, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func remarshal(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	must(t, err)
}

// TestLint holds that helm has nothing to say.
func TestLint(t *testing.T) {
	t.Parallel()
	out, err := call(t, cluster.Helm, "", "lint", "--strict", chartDir, loaded)
	if err != nil || strings.Contains(out, "[") {
		t.Errorf("%v\n%s", err, out)
	}
}
