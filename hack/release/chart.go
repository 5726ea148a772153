// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/config/policy"
)

// chartDir is the folder of the Helm chart.
const chartDir = "charts/kubediag"

// The media types of a chart in a registry, see helm.sh/docs/topics/registries.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartVersion is the version of the chart: that of the release without its v.
func (o options) chartVersion() string { return strings.TrimPrefix(o.version, "v") }

// addChart adds the chart as a package, and as an OCI layout.
func (r *release) addChart() error {
	about, err := r.chartMetadata()
	if err != nil {
		return err
	}
	metadata, err := yaml.Marshal(about)
	if err != nil {
		return err
	}
	files, err := filesIn(chartDir)
	if err != nil {
		return err
	}
	for i := range files {
		switch files[i].name {
		case "Chart.yaml":
			files[i].content = metadata
		case "values.yaml":
			for key, value := range map[string]string{"registry": r.registry, "runbookURL": r.runbookURL()} {
				if files[i].content, err = setValue(files[i].content, key, value); err != nil {
					return err
				}
			}
		}
		files[i].name = "kubediag/" + files[i].name
	}
	content, err := tarGz(files)
	if err != nil {
		return err
	}
	r.add("kubediag-"+r.chartVersion()+".tgz", content)
	config, err := json.Marshal(about)
	if err != nil {
		return err
	}
	return r.addLayout("chart", func(to layout.Path) error {
		chart, err := newArtifact(config, static.NewLayer(content, chartContent))
		if err != nil {
			return err
		}
		return to.AppendImage(chart, layout.WithAnnotations(map[string]string{refName: r.chartVersion()}))
	})
}

// artifact is a chart as a registry has it: a manifest, the chart's metadata as its configuration, and the package as its layer.
type artifact struct {
	config, manifest []byte
	layer            v1.Layer
}

// newArtifact makes the image of an artifact.
func newArtifact(config []byte, layer v1.Layer) (v1.Image, error) {
	a := artifact{config: config, layer: layer}
	described, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	a.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: chartConfig, Size: size, Digest: digest}, Layers: []v1.Descriptor{*described},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

// RawConfigFile, MediaType, RawManifest and LayerByDigest make it a partial.CompressedImageCore.
func (a artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// MediaType is that of the manifest.
func (artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest is the manifest.
func (a artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// LayerByDigest is the one layer.
func (a artifact) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return a.layer, nil }

// chartMetadata is Chart.yaml of the release.
func (r *release) chartMetadata() (map[string]any, error) {
	text, err := os.ReadFile(filepath.Join(chartDir, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	about := map[string]any{}
	if err := yaml.Unmarshal(text, &about); err != nil {
		return nil, err
	}
	about["version"], about["appVersion"] = r.chartVersion(), r.version
	if r.repoURL != "" {
		about["home"], about["sources"] = r.repoURL, []string{r.repoURL}
	}
	return about, nil
}

// setValue sets a value of the chart that is empty.
func setValue(values []byte, key, value string) ([]byte, error) {
	if value == "" {
		return values, nil
	}
	none := "\n  " + key + ": \"\"\n"
	if bytes.Count(values, []byte(none)) != 1 {
		return nil, fmt.Errorf("%s/values.yaml has no line %q", chartDir, strings.TrimSpace(none))
	}
	return bytes.Replace(values, []byte(none), fmt.Appendf(nil, "\n  %s: %q\n", key, value), 1), nil
}

// runbookURL is the folder of the runbooks on the repository's page; empty: there is no page.
func (o options) runbookURL() string {
	if o.repoURL == "" {
		return ""
	}
	return o.repoURL + "/blob/" + o.version + "/docs/runbook"
}

// addMonitoring adds the alerts and the dashboard. An alert of a fault has the address of its runbook.
func (r *release) addMonitoring() error {
	rules, err := os.ReadFile("config/alerts/kubediag.yaml")
	if err != nil {
		return err
	}
	if url := r.runbookURL(); url != "" {
		description := regexp.MustCompile(`(?m)^( +)description: .*explain (\{\{ \$labels\.[a-z]+ }})"$`)
		rules = description.ReplaceAll(rules, []byte("$0\n${1}runbook_url: \""+url+"/$2.md\""))
	}
	r.add("kubediag-alerts.yaml", rules)
	dashboard, err := os.ReadFile("config/dashboards/kubediag.json")
	r.add("kubediag-dashboard.json", dashboard)
	return err
}

// addManifest adds install.yaml, which is config/default with the images of the release, and policies.yaml, the policies that doctor
// recommends. API servers before 1.30 know no policies.
func (r *release) addManifest() error {
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "config/default")
	if err != nil {
		return fmt.Errorf("build config/default: %w", err)
	}
	text, err := objects.AsYaml()
	if err != nil {
		return err
	}
	for _, name := range []string{"manager", "agent"} {
		was, want := "image: localhost/kubediag/"+name+":", "image: "+r.imageName(name)+":"+r.version+"\n"
		before, after, found := strings.Cut(string(text), was)
		_, after, ended := strings.Cut(after, "\n")
		if !found || !ended || strings.Contains(after, was) {
			return fmt.Errorf("config/default: it does not name the image %q once", strings.TrimPrefix(was, "image: "))
		}
		text = []byte(before + want + after)
	}
	r.add("install.yaml", text)
	var policies []string
	for _, name := range []string{"agent-node.yaml", "diagnosis-rights.yaml"} {
		text, err := policy.Files.ReadFile(name)
		if err != nil {
			return err
		}
		policies = append(policies, string(text))
	}
	r.add("policies.yaml", []byte(strings.Join(policies, "---\n")))
	return nil
}

// imageName is the name of an image without its tag.
func (o options) imageName(name string) string {
	if o.registry == "" {
		return o.repository + "/" + name
	}
	return o.registry + "/" + name
}

// addNotes adds the part of CHANGELOG.md about this version: that below its heading, or below "Unreleased".
func (r *release) addNotes() error {
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	notes, err := notesOf(string(text), r.version)
	if err != nil {
		return err
	}
	r.add("RELEASE_NOTES.md", []byte("# kubediag "+r.version+"\n\n"+r.installation()+"\n## Changes\n\n"+notes+"\n"))
	return nil
}

// installation says how to install a release with its files alone. A test types the commands.
func (o options) installation() string {
	where := "If the nodes do not reach " + o.registry + ", load the images on each node first:"
	if o.registry == "" {
		where = "Load the images on each node:"
	}
	return fmt.Sprintf("## Install\n\nIn the folder with the files of this release. %s\n\n```sh\n"+
		"ctr -n k8s.io images import kubediag-manager-%[2]s.oci.tar\nctr -n k8s.io images import kubediag-agent-%[2]s.oci.tar\n```\n\n"+
		"Then, with the archive of your own machine for the plugin:\n\n```sh\nsha256sum --check --quiet SHA256SUMS\nkubectl apply -f install.yaml\n"+
		"kubectl -n kubediag rollout status deployment/kubediag-manager\nkubectl -n kubediag rollout status daemonset/kubediag-agent\ntar -xzf kubectl-kubediag-linux-amd64.tar.gz kubectl-kubediag\n"+
		"sudo install kubectl-kubediag /usr/local/bin/\nkubectl kubediag doctor\nkubectl kubediag faults -A\n```\n\n"+
		"`kubectl kubediag run pod/NAME` prints a plan, asks, repairs exactly that plan, and proves it.\n", where, o.version)
}

// notesOf cuts the notes of a version from a changelog.
func notesOf(changelog, version string) (string, error) {
	for _, heading := range []string{strings.TrimPrefix(version, "v"), version, "Unreleased"} {
		_, rest, found := strings.Cut("\n"+changelog, "\n## "+heading)
		if !found || rest == "" || !strings.ContainsAny(rest[:1], " \n(") {
			continue
		}
		_, rest, _ = strings.Cut(rest, "\n")
		notes, _, _ := strings.Cut("\n"+rest, "\n## ")
		if notes = strings.TrimSpace(notes); notes != "" {
			return notes, nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has no notes below %q or \"Unreleased\"", version)
}
