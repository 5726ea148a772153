// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const readmeHead = `# kubediag

kubediag finds the broken mounts that keep pods from starting, running or terminating, proves the cause and repairs them.

` + "```sh" + `
helm install kubediag CHART --namespace kubediag --create-namespace --set image.registry=registry.example.org/kubediag
helm test kubediag --namespace kubediag --logs
` + "```" + `

CHART is the folder, the package or the OCI address of this chart. The cluster needs Kubernetes 1.18 or later, the nodes Linux 5.10 or later.
The agents are privileged: if the cluster enforces Pod Security, label the namespace with
` + "`pod-security.kubernetes.io/enforce=privileged`" + ` first.

## Values

make generate writes this table from values.yaml.

| value | default | meaning |
|---|---|---|
`

// TestReadmeNamesTheValues compares the table of values in README.md with values.yaml. With KUBEDIAG_GOLDEN it writes the file.
func TestReadmeNamesTheValues(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	must(t, err)
	var values yaml.Node
	must(t, yaml.Unmarshal(text, &values))
	var b strings.Builder
	b.WriteString(readmeHead)
	writeValues(t, &b, "", "", values.Content[0])
	name := filepath.Join(chartDir, "README.md")
	if os.Getenv("KUBEDIAG_GOLDEN") != "" {
		must(t, os.WriteFile(name, []byte(b.String()), 0o600))
	}
	got, err := os.ReadFile(name)
	must(t, err)
	if diff := cmp.Diff(b.String(), string(got)); diff != "" {
		t.Errorf("README.md is old: run make generate (-values.yaml +README.md):\n%s", diff)
	}
}

// writeValues writes a line for each value below a mapping. One that has no comment has the meaning of the values above it.
func writeValues(t *testing.T, b *strings.Builder, prefix, meaning string, mapping *yaml.Node) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		if comment := strings.TrimSpace(strings.ReplaceAll(key.HeadComment, "# ", "")); comment != "" {
			_, meaning, _ = strings.Cut("\n\n"+comment, "\n\n") // the first key has the header of the file as well
			meaning = strings.Join(strings.Fields(meaning[strings.LastIndex(meaning, "\n\n")+1:]), " ")
		}
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Style&yaml.FlowStyle == 0 {
			writeValues(t, b, prefix+key.Value+".", meaning, value)
		} else {
			flow := *value
			flow.Style |= yaml.FlowStyle
			shown, err := yaml.Marshal(&flow)
			must(t, err)
			fmt.Fprintf(b, "| `%s%s` | `%s` | %s |\n", prefix, key.Value, strings.Join(strings.Fields(string(shown)), " "), meaning)
		}
		meaning = ""
	}
}
