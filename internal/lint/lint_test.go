// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// pod reads the spec of a pod.
func pod(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	var p corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// extraINI is the pod of kubernetes#68211, whose file lies in a directory of its own.
const extraINI = `
volumes:
- name: extra-cfg
  configMap: {name: extra-cfg, defaultMode: 256}
containers:
- name: test
  image: ubuntu:bionic
  volumeMounts:
  - {name: extra-cfg, mountPath: /opt/app/extra.ini, subPath: extra.ini}
`

const wantExtraINI = `spec:
  containers:
  - name: test
    volumeMounts:
    - mountPath: /opt/app
      name: extra-cfg-dir
      readOnly: true
    - $patch: delete
      mountPath: /opt/app/extra.ini
  volumes:
  - name: extra-cfg-dir
    projected:
      sources:
      - configMap:
          items:
          - key: extra.ini
            mode: 256
            path: extra.ini
          name: extra-cfg
`

func TestMutableSubPath(t *testing.T) {
	t.Parallel()
	found := Check("Pod", "default", "test-pod", pod(t, extraINI), Options{})
	if len(found) != 1 {
		t.Fatalf("found %+v, want one", found)
	}
	f := found[0]
	want := []Mount{{"spec.containers[0].volumeMounts[0]", "extra-cfg", "/opt/app/extra.ini", "extra.ini"}}
	if f.Rule != MutableSubPath || f.Code != "StaleSubPath" || f.Container != "test" || !cmp.Equal(f.Mounts, want) {
		t.Errorf("found %+v", f)
	}
	if diff := cmp.Diff(wantExtraINI, f.Patch); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}

func TestKubeletVersion(t *testing.T) {
	t.Parallel()
	for v, bug := range map[string]bool{
		"1.18": true, "v1.18.20": true, "v1.18.20-eks-8df270": true, "1.9": true, "1.19": false, "v1.19.0": false, "1.36.3": false,
	} {
		found := Check("Pod", "", "p", pod(t, extraINI), Options{KubeletVersion: version.MustParseGeneric(v)})
		if (len(found) == 1) != bug {
			t.Errorf("kubelet %s: %d findings, want some: %v", v, len(found), bug)
		}
	}
}

// TestSources: where the files of a subPath come from.
func TestSources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ volume, mount, want string }{
		"a secret with items": {
			`secret: {secretName: s, optional: true, items: [{key: k, path: tls/key.pem}, {key: c, path: tls/crt.pem}, {key: x, path: other}]}`,
			`mountPath: /opt/app/tls, subPath: tls`,
			`[{"secret":{"name":"s","items":[{"key":"k","path":"tls/key.pem"},{"key":"c","path":"tls/crt.pem"}],"optional":true}}]`,
		},
		"a field of the pod": {
			`downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: x, fieldRef: {fieldPath: metadata.name}}]}`,
			`mountPath: /opt/app/l, subPath: labels`,
			`[{"downwardAPI":{"items":[{"path":"l","fieldRef":{"fieldPath":"metadata.labels"}}]}}]`,
		},
		"a token": {
			`projected: {sources: [{serviceAccountToken: {path: token, audience: a}}, {configMap: {name: c}}]}`,
			`mountPath: /opt/app/token, subPath: token`,
			`[{"serviceAccountToken":{"audience":"a","path":"token"}}]`,
		},
		"the one source that has all keys": {
			`projected: {sources: [{serviceAccountToken: {path: token}}, {configMap: {name: c}}]}`,
			`mountPath: /opt/app/a.ini, subPath: b.ini`,
			`[{"configMap":{"name":"c","items":[{"key":"b.ini","path":"a.ini"}]}}]`,
		},
		"two that may have it": {`projected: {sources: [{secret: {name: s}}, {configMap: {name: c}}]}`, `mountPath: /opt/app/a, subPath: a`, ""},
		"no such item":         {`configMap: {name: c, items: [{key: a, path: a}]}`, `mountPath: /opt/app/b, subPath: b`, ""},
		"an expression":        {`configMap: {name: c}`, `mountPath: /opt/app/a, subPathExpr: $(POD_NAME).ini`, ""},
		"the kubelet's link":   {`configMap: {name: c}`, `mountPath: /opt/app/a, subPath: ..data/a`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := pod(t, "volumes:\n- {name: v, "+c.volume+"}\ncontainers:\n- name: c\n  volumeMounts:\n  - {name: v, "+c.mount+"}\n")
			found := Check("Pod", "", "p", spec, Options{})
			if len(found) != 1 || found[0].Rule != MutableSubPath || found[0].Cure == "" {
				t.Fatalf("found %+v", found)
			}
			var patched struct{ Spec corev1.PodSpec }
			if err := yaml.Unmarshal([]byte(found[0].Patch), &patched); err != nil {
				t.Fatal(err)
			}
			got := ""
			if len(patched.Spec.Volumes) > 0 {
				text, err := json.Marshal(patched.Spec.Volumes[0].Projected.Sources)
				if err != nil {
					t.Fatal(err)
				}
				got = string(text)
			}
			if got != c.want {
				t.Errorf("sources %s, want %s", got, c.want)
			}
		})
	}
}

// TestDirectory: where the new volume is mounted.
func TestDirectory(t *testing.T) {
	t.Parallel()
	const volume = "volumes:\n- {name: cfg, configMap: {name: cfg}}\n- {name: data, emptyDir: {}}\n- {name: cfg-dir, emptyDir: {}}\ncontainers:\n- name: c\n  volumeMounts:\n"
	for name, c := range map[string]struct {
		mounts string
		want   []string // mount paths of the patches
	}{
		"a directory of its own": {"  - {name: cfg, mountPath: /opt/app/a, subPath: a}\n", []string{"/opt/app"}},
		"two files of one":       {"  - {name: cfg, mountPath: /opt/app/a, subPath: a}\n  - {name: cfg, mountPath: /opt/app/b, subPath: b}\n", []string{"/opt/app"}},
		"of two":                 {"  - {name: cfg, mountPath: /opt/x/a, subPath: a}\n  - {name: cfg, mountPath: /opt/y/b, subPath: b}\n", []string{"/opt/x", "/opt/y"}},
		"one of the image's":     {"  - {name: cfg, mountPath: /etc/a, subPath: a}\n", []string{"/mnt/cfg-dir-2"}},
		"below /etc":             {"  - {name: cfg, mountPath: /etc/nginx/nginx.conf, subPath: a}\n", []string{"/mnt/cfg-dir-2"}},
		"one of packages":        {"  - {name: cfg, mountPath: /etc/logrotate.d/a, subPath: a}\n", []string{"/mnt/cfg-dir-2"}},
		"the root":               {"  - {name: cfg, mountPath: /a, subPath: a}\n", []string{"/mnt/cfg-dir-2"}},
		"with another mount":     {"  - {name: cfg, mountPath: /opt/app/a, subPath: a}\n  - {name: data, mountPath: /opt/app/data}\n", []string{"/mnt/cfg-dir-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range Check("Pod", "", "p", pod(t, volume+c.mounts), Options{}) {
				var patched struct{ Spec corev1.PodSpec }
				if err := yaml.Unmarshal([]byte(f.Patch), &patched); err != nil {
					t.Fatal(err)
				}
				got = append(got, patched.Spec.Containers[0].VolumeMounts[0].MountPath)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("mounted at %q, want %q", got, c.want)
			}
		})
	}
}

// TestPropagation: which mounts of the host are copies that stay.
func TestPropagation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, mount string
		want        Rule
	}{
		"the root":                 {"/", "mountPath: /host, readOnly: true", HostPropagation},
		"with propagation none":    {"/", "mountPath: /host, mountPropagation: None", HostPropagation},
		"that follows":             {"/", "mountPath: /host, mountPropagation: HostToContainer", ""},
		"that spreads":             {"/", "mountPath: /host, mountPropagation: Bidirectional", ""},
		"the kubelet's":            {"/var/lib/kubelet", "mountPath: /k", HostPropagation},
		"its parent":               {"/var/lib/", "mountPath: /k", HostPropagation},
		"pods":                     {"/var/lib/kubelet/pods", "mountPath: /k", HostPropagation},
		"by subPath":               {"/var", "mountPath: /k, subPath: lib/kubelet", HostPropagation},
		"a subPath beside":         {"/", "mountPath: /k, subPath: etc", ""},
		"a driver's socket":        {"/var/lib/kubelet/plugins/csi.example.com", "mountPath: /csi", ""},
		"logs":                     {"/var/log", "mountPath: /var/log", ""},
		"the processes":            {"/proc", "mountPath: /host/proc", ""},
		"a name that begins alike": {"/var/lib/kubelet-x", "mountPath: /k", ""},
		"a driver's directory":     {"/runtime-mnt/jfs/ns/d", "mountPath: /data", FUSEPropagation},
		"what another mounts":      {"/mnt/s3", "mountPath: /data", FUSEPropagation},
		"beside what it mounts":    {"/mnt/s4", "mountPath: /data", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := pod(t, "volumes:\n- {name: v, hostPath: {path: "+c.path+"}}\ncontainers:\n- name: c\n  volumeMounts:\n  - {name: v, "+c.mount+"}\n")
			var got []Rule
			for _, f := range Check("DaemonSet", "", "p", spec, Options{MountDirs: hostDirs("/mnt/s3")}) {
				got = append(got, f.Rule)
			}
			if c.want == "" && len(got) > 0 || c.want != "" && !slices.Equal(got, []Rule{c.want}) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// sidecar has a container that mounts for another one of its pod.
const sidecar = `
volumes:
- {name: s3, emptyDir: {}}
- {name: dir, hostPath: {path: /mnt/s3}}
initContainers:
- name: mounter
  restartPolicy: Always
  volumeMounts:
  - {name: s3, mountPath: /s3, mountPropagation: Bidirectional}
  - {name: dir, mountPath: /dir, mountPropagation: Bidirectional}
containers:
- name: app
  volumeMounts:
  - {name: s3, mountPath: /data}
`

// TestOthersThatMount: a mount for the node is no FUSE file system.
func TestOthersThatMount(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/dev", "/sys/fs/bpf", "/run/netns", "/var/lib/kubelet/pods", "/"} {
		spec := pod(t, "volumes:\n- {name: v, hostPath: {path: "+dir+"}}\ncontainers:\n"+
			"- {name: a, volumeMounts: [{name: v, mountPath: /a, mountPropagation: Bidirectional}]}\n"+
			"- {name: b, volumeMounts: [{name: v, mountPath: /b}]}\n")
		if got := MountDirs(spec); len(got) > 0 {
			t.Errorf("%s: mounts in %q", dir, got)
		}
		for _, f := range Check("Pod", "", "p", spec, Options{}) {
			if f.Rule == FUSEPropagation {
				t.Errorf("%s: found %+v", dir, f)
			}
		}
	}
}

func TestMounterInThePod(t *testing.T) {
	t.Parallel()
	spec := pod(t, sidecar)
	found := Check("CronJob", "ns", "p", spec, Options{})
	if len(found) != 1 || found[0].Rule != FUSEPropagation || found[0].Container != "app" ||
		found[0].Mounts[0].Field != "spec.jobTemplate.spec.template.spec.containers[0].volumeMounts[0]" {
		t.Errorf("found %+v", found)
	}
	if got := MountDirs(spec); !slices.Equal(got, []string{"/mnt/s3"}) {
		t.Errorf("mounts in %q", got)
	}
}

// TestPatchesCure applies all patches to their objects, and nothing is found any more.
func TestPatchesCure(t *testing.T) {
	t.Parallel()
	const exporter = "volumes:\n- {name: root, hostPath: {path: /}}\ninitContainers:\n- name: c\n  volumeMounts:\n" +
		"  - {name: root, mountPath: /host, readOnly: true, recursiveReadOnly: Enabled}\ncontainers:\n- {name: other}\n"
	for name, text := range map[string]string{"subPath": extraINI, "sidecar": sidecar, "exporter": exporter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := pod(t, text)
			object, err := json.Marshal(map[string]any{"spec": spec})
			if err != nil {
				t.Fatal(err)
			}
			found := Check("Pod", "", "p", spec, Options{})
			if len(found) == 0 {
				t.Fatal("nothing is found: the test would prove nothing")
			}
			for _, f := range found {
				text, err := yaml.YAMLToJSON([]byte(f.Patch))
				if err != nil {
					t.Fatal(err)
				}
				if object, err = strategicpatch.StrategicMergePatch(object, text, corev1.Pod{}); err != nil {
					t.Fatal(err)
				}
			}
			var cured corev1.Pod
			if err := yaml.UnmarshalStrict(object, &cured); err != nil {
				t.Fatal(err)
			}
			if left := Check("Pod", "", "p", &cured.Spec, Options{}); len(left) > 0 || strings.Contains(string(object), "recursiveReadOnly") {
				t.Errorf("left: %+v\n%s", left, object)
			}
		})
	}
}
