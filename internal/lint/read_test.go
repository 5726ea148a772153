// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    spec:
      volumes:
      - name: cfg
        configMap: {name: cfg}
      containers:
      - name: web
        volumeMounts:
        - name: cfg
          mountPath: /opt/app/a.ini
          subPath: a.ini
`

const jsonPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{
"volumes":[{"name":"root","hostPath":{"path":"/"}}],
"containers":[{"name":"c","volumeMounts":[{"name":"root","mountPath":"/host"}]}]}}
`

func TestRead(t *testing.T) {
	t.Parallel()
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(deployment), "\n", "\n  ") + "\n"
	for name, c := range map[string]struct{ content, want string }{
		"one":                  {deployment, "[Deployment/shop/web:13]"},
		"after another":        {"# a comment\n---\n" + service + "---\n# c\n" + deployment, "[Deployment/shop/web:20] Service"},
		"json":                 {jsonPod, "[Pod//p:3]"},
		"json twice":           {jsonPod + jsonPod, "[Pod//p:3 Pod//p:1]"},
		"a list":               {list, "[Deployment/shop/web:16]"},
		"a list of its kind":   {`{"apiVersion":"v1","kind":"PodList","items":[` + strings.Replace(jsonPod, `"apiVersion":"v1","kind":"Pod",`, "", 1) + `]}`, "[Pod//p:3]"},
		"immutable":            {deployment + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cfg, namespace: shop}\nimmutable: true\n", "[] ConfigMap"},
		"immutable elsewhere":  {deployment + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cfg, namespace: x}\nimmutable: true\n", "[Deployment/shop/web:13] ConfigMap"},
		"another's kind":       {"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\n", "[] Job"},
		"values of a chart":    {"replicas: 3\n---\n- op: remove\n", "[] document that is no object"},
		"nothing":              {"# nothing\n---\n---\n", "[]"},
		"windows' line breaks": {strings.ReplaceAll(deployment, "\n", "\r\n"), "[Deployment/shop/web:13]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Manifests
			if err := m.Read("f.yaml", strings.NewReader(c.content)); err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, f := range m.Check(Options{}) {
				found = append(found, fmt.Sprintf("%s/%s/%s:%d", f.Kind, f.Namespace, f.Name, f.Line))
			}
			got := fmt.Sprint(found)
			for kind := range maps.Keys(m.PassedOver) {
				got += " " + kind
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestReadBroken: the error names a broken document, and the rest is read.
func TestReadBroken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ content, want string }{
		"a template of helm":   {"a: b\n{{ .Values.x }}\n", "f.yaml:2: document 1: "},
		"a tab":                {"kind: Pod\n---\nkind: Pod\n\tx: y\n", "f.yaml:4: document 2: "},
		"after a separator":    {"--- kind: Pod\n", "f.yaml:1: document 1: invalid Yaml document separator: kind: Pod"},
		"no kind":              {"apiVersion: v1\nspec: {}\n", "f.yaml:1: document 1: kind: it is missing"},
		"no template":          {"kind: Deployment\napiVersion: apps/v1\n", "Deployment: spec.template.spec is missing"},
		"another type":         {"kind: Pod\napiVersion: v1\nspec: {containers: 5}\n", "f.yaml:1: document 1: spec: json: cannot unmarshal number"},
		"in a list":            {"kind: List\napiVersion: v1\nitems: [{kind: Pod}]\n", "items[0]: Pod: spec is missing"},
		"a list of lists":      {"kind: ListList\napiVersion: v1\nitems: [{}]\n", "a list of lists"},
		"json that is cut off": {"{\n\"kind\":\n", "f.yaml:4: document 1: unexpected EOF"},
		"aliases in aliases":   {bomb(), "f.yaml:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Manifests
			err := m.Read("f.yaml", strings.NewReader(c.content+"\n---\n"+deployment))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(m.Workloads) != 1 {
				t.Errorf("read %d workloads, want the one that is well", len(m.Workloads))
			}
		})
	}
}

// bomb is a document whose aliases stand for very much.
func bomb() string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	return text
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{deployment, jsonPod, bomb(), "---\n---\n", "{}{}", "kind: List\nitems: [{}]\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(_ *testing.T, content []byte) {
		var m Manifests
		_ = m.Read("f", strings.NewReader(string(content)))
		m.Check(Options{})
	})
}
