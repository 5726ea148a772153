// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	kubediagversion "kubediag.org/kubediag/internal/version"
)

// TestManifestsNameTheImagesThatMakeMakes holds make image, kubectl apply -k and the Helm chart together.
func TestManifestsNameTheImagesThatMakeMakes(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("Makefile")
	must(t, err)
	manifest, err := os.ReadFile("config/default/kustomization.yaml")
	must(t, err)
	version := regexp.MustCompile(`(?m)^VERSION \?= (\S+)$`).FindSubmatch(makefile)
	if version == nil {
		t.Fatal("Makefile sets no VERSION")
	}
	for _, name := range []string{"manager", "agent"} {
		want := regexp.MustCompile(`(?m)^- name: localhost/kubediag/` + name + `\n  newTag: ` + regexp.QuoteMeta(string(version[1])) + `$`)
		if !want.Match(manifest) {
			t.Errorf("config/default does not name localhost/kubediag/%s:%s", name, version[1])
		}
	}
	image := "localhost/kubediag/cli:" + string(version[1])
	if version := kubediagversion.CLIImage(); version != image {
		t.Errorf("version.CLIImage is %q, make image makes %q", version, image)
	}
	for _, x := range allTexts(t) {
		if !strings.HasPrefix(x.name, "docs/") {
			continue
		}
		for _, found := range regexp.MustCompile(`--image=localhost/kubediag/cli\S*`).FindAllString(x.content, -1) {
			if found != "--image="+image {
				t.Errorf("%s: %s, want --image=%s", x.name, found, image)
			}
		}
	}
	chart, err := os.ReadFile("charts/kubediag/Chart.yaml")
	must(t, err)
	for _, want := range []string{"\nversion: " + strings.TrimPrefix(string(version[1]), "v") + "\n", "\nappVersion: " + string(version[1]) + "\n"} {
		if !strings.Contains(string(chart), want) {
			t.Errorf("charts/kubediag/Chart.yaml has no line %q", want)
		}
	}
}
