// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package integrations

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/fault"
)

// mostPluginLines bounds the plugin for Headlamp.
const mostPluginLines = 300

// TestPluginOfHeadlamp holds that each field that the plugin shows is one of a MountFault, that it has all impacts in their order, and that
// it only reads. make test-headlamp builds it.
func TestPluginOfHeadlamp(t *testing.T) {
	t.Parallel()
	text := string(readFile(t, "headlamp/src/index.tsx"))
	if n := strings.Count(text, "\n"); n > mostPluginLines {
		t.Errorf("%d lines, at most %d", n, mostPluginLines)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					Root struct {
						Properties map[string]struct {
							Properties map[string]any `json:"properties"`
						} `json:"properties"`
					} `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	crd, err := os.ReadFile("../../config/crd/diagnosis.kubediag.org_mountfaults.yaml")
	if err == nil {
		err = yaml.Unmarshal(crd, &definition)
	}
	must(t, err)
	status := definition.Spec.Versions[0].Schema.Root.Properties["status"].Properties
	_, fields, _ := strings.Cut(text, "interface FaultStatus {\n")
	fields, _, _ = strings.Cut(fields, "\n}")
	read := regexp.MustCompile(`(?m)^  (\w+)\??:`).FindAllStringSubmatch(fields, -1)
	for _, field := range read {
		if status[field[1]] == nil {
			t.Errorf("a MountFault has no field %q", field[1])
		}
	}
	if len(read) < 10 {
		t.Errorf("fields %q", read)
	}
	var impacts []string
	for _, impact := range fault.Impacts() {
		impacts = append(impacts, "'"+string(impact)+"'")
	}
	if list := "[" + strings.Join(impacts, ", ") + "]"; !strings.Contains(text, list) {
		t.Errorf("the impacts are not %s", list)
	}
	if write := regexp.MustCompile(`\.(post|put|patch|apply|delete|update)\(|ApiProxy|fetch\(|dangerouslySetInnerHTML`).FindString(text); write != "" {
		t.Errorf("it does more than read: %q", write)
	}
}
