// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

var must = kerneltest.Must

// programs makes a folder of all programs that a release is made of; each is the same small one.
func programs(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	self := filepath.Join(bin, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", self, "./hack/release/testdata/program")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	put := func(path string) {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.Link(self, path))
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range []string{"manager", "agent", "kubediag"} {
			put(filepath.Join(bin, "linux_"+arch, name))
		}
	}
	for _, p := range platforms {
		put(p.path(bin))
	}
	return bin
}

// packedRelease packs a release of this tree.
func packedRelease(t *testing.T, bin string, o options) options {
	t.Helper()
	o.repository, o.version, o.bin, o.dist = "localhost/kubediag", "v9.8.7", bin, t.TempDir()
	o.arches, o.date, o.commit = []string{"amd64", "arm64"}, "2026-01-02T03:04:05Z", "abc"
	must(t, packRelease(t.Context(), o))
	return o
}

// sums are the digests of all files of a release by their names.
func sums(t *testing.T, o options) map[string]string {
	t.Helper()
	files, err := filesIn(o.dir())
	must(t, err)
	all := map[string]string{}
	for _, f := range files {
		all[f.name] = fmt.Sprintf("%x", sha256.Sum256(f.content))
	}
	return all
}

func readRelease(t *testing.T, o options, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(o.dir(), name))
	must(t, err)
	return content
}

// untarGz returns the content of each file of an archive by its name and mode.
func untarGz(t *testing.T, content []byte) map[string]string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(content))
	must(t, err)
	return untar(t, r)
}

// unzip returns the content of each file of an archive by its name and mode.
func unzip(t *testing.T, content []byte) map[string]string {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	must(t, err)
	files := map[string]string{}
	for _, f := range r.File {
		opened, err := f.Open()
		must(t, err)
		text, err := io.ReadAll(opened)
		must(t, err)
		files[fmt.Sprintf("%s %o", f.Name, f.Mode().Perm())] = string(text)
	}
	return files
}

// TestRelease packs a release twice, in two folders. It changes the working directory: no other test of it runs beside it.
func TestRelease(t *testing.T) {
	t.Chdir("../..")
	bin := programs(t)
	named := options{registry: "registry.example.org/k", repoURL: "https://example.org/kubediag"}
	first, second := packedRelease(t, bin, named), packedRelease(t, bin, named)
	if diff := cmp.Diff(sums(t, first), sums(t, second)); diff != "" {
		t.Errorf("a second release has other files (-first +second):\n%s", diff)
	}
	plain := packedRelease(t, bin, options{})
	t.Run("checksums", func(t *testing.T) { checkSums(t, first) })
	t.Run("plugins", func(t *testing.T) { checkPlugins(t, first) })
	t.Run("chart", func(t *testing.T) {
		checkChart(t, first, "registry: \"registry.example.org/k\"", "https://example.org/kubediag")
		checkChart(t, plain, "registry: \"\"", nil)
	})
	t.Run("manifest", func(t *testing.T) {
		for name, o := range map[string]options{"registry.example.org/k": first, "localhost/kubediag": plain} {
			text, notes := string(readRelease(t, o, "install.yaml")), string(readRelease(t, o, "RELEASE_NOTES.md"))
			if policies := string(readRelease(t, o, "policies.yaml")); !strings.Contains(policies, "\n  name: kubediag-agent-node\n") ||
				!strings.Contains(policies, "\n---\n") || !strings.Contains(policies, "\n  name: kubediag-diagnosis-rights\n") {
				t.Errorf("policies.yaml lacks a policy:\n%s", policies)
			}
			if want := "\nctr -n k8s.io images import kubediag-agent-v9.8.7.oci.tar\n"; !strings.Contains(notes, want) || !strings.Contains(notes, "\n## Changes\n\n") {
				t.Errorf("RELEASE_NOTES.md has no %q, or no changes", want)
			}
			for _, image := range []string{"/manager:v9.8.7\n", "/agent:v9.8.7\n"} {
				if strings.Count(text, "image: "+name+image) != 1 {
					t.Errorf("install.yaml does not name %s%s once", name, image)
				}
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		for registry, o := range map[string]options{"registry.example.org/k": first, "localhost/kubediag": plain} {
			for _, i := range images {
				_, entry, err := o.loadLayout(i.name)
				must(t, err)
				if got, want := entry.Annotations["io.containerd.image.name"], registry+"/"+i.name+":v9.8.7"; got != want {
					t.Errorf("ctr images import names the %s %q, want %q as install.yaml", i.name, got, want)
				}
			}
		}
	})
	t.Run("alerts", func(t *testing.T) {
		text := string(readRelease(t, first, "kubediag-alerts.yaml"))
		for _, label := range []string{"code", "fault"} {
			alerts := strings.Count(text, "kubectl kubediag explain {{ $labels."+label+" }}")
			want := "      runbook_url: \"https://example.org/kubediag/blob/v9.8.7/docs/runbook/{{ $labels." + label + " }}.md\"\n"
			if got := strings.Count(text, want); got != alerts || alerts == 0 {
				t.Errorf("%d alerts have the line %q, want %d", got, want, alerts)
			}
		}
		if text = string(readRelease(t, plain, "kubediag-alerts.yaml")); strings.Contains(text, "runbook_url") || !strings.Contains(text, "VolumeBroken") {
			t.Errorf("alerts of a release without a page: %s", text)
		}
		values := untarGz(t, readRelease(t, first, "kubediag-9.8.7.tgz"))["kubediag/values.yaml 644"]
		if want := "\n  runbookURL: \"https://example.org/kubediag/blob/v9.8.7/docs/runbook\"\n"; !strings.Contains(values, want) {
			t.Errorf("values.yaml of the chart has no %q", want)
		}
	})
	t.Run("krew", func(t *testing.T) {
		if _, there := sums(t, plain)["kubediag.yaml"]; there {
			t.Error("a release without a page has a krew manifest")
		}
		checkKrew(t, first)
	})
	t.Run("bills", func(t *testing.T) { checkBills(t, first) })
	t.Run("push", func(t *testing.T) { checkPush(t, first) })
}

func checkSums(t *testing.T, o options) {
	all := sums(t, o)
	listed := 0
	for line := range strings.Lines(string(readRelease(t, o, "SHA256SUMS"))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if all[name] != sum {
			t.Errorf("SHA256SUMS says %s of %q, which is %s", sum, name, all[name])
		}
		listed++
	}
	for name := range all {
		if !strings.Contains(name, "/") {
			listed--
		}
	}
	if listed != -1 { // the list itself
		t.Errorf("%d files more in SHA256SUMS than in the folder, want one fewer", listed)
	}
}

func checkPlugins(t *testing.T, o options) {
	self := string(readRelease(t, o, "kubediag-linux-amd64"))
	for _, p := range platforms {
		content := readRelease(t, o, p.archive())
		unpack := untarGz
		if p.system == "windows" {
			unpack = unzip
		}
		files := unpack(t, content)
		if files[p.program()+" 755"] != self || files["LICENSE 644"] == "" || len(files) != 2 {
			t.Errorf("%s has %d files, want the program and the license", p.archive(), len(files))
		}
	}
}

func checkChart(t *testing.T, o options, registry string, home any) {
	t.Helper()
	files := untarGz(t, readRelease(t, o, "kubediag-9.8.7.tgz"))
	var about map[string]any
	must(t, yaml.Unmarshal([]byte(files["kubediag/Chart.yaml 644"]), &about))
	got := []any{about["name"], about["version"], about["appVersion"], about["home"]}
	if diff := cmp.Diff([]any{"kubediag", "9.8.7", "v9.8.7", home}, got); diff != "" {
		t.Errorf("Chart.yaml (-want +got):\n%s", diff)
	}
	if !strings.Contains(files["kubediag/values.yaml 644"], "\n  "+registry+"\n") {
		t.Errorf("values.yaml has no line %q", registry)
	}
	if files["kubediag/templates/agent.yaml 644"] == "" || files["kubediag/config/agent/daemonset.yaml 644"] == "" {
		t.Error("the chart has no templates, or no manifests")
	}
}

func checkKrew(t *testing.T, o options) {
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	must(t, yaml.Unmarshal(readRelease(t, o, "kubediag.yaml"), &plugin))
	if plugin.Metadata.Name != "kubediag" || plugin.Spec.Version != "v9.8.7" || len(plugin.Spec.Platforms) != len(platforms) {
		t.Errorf("krew manifest: %+v", plugin)
	}
	all := sums(t, o)
	for i, p := range plugin.Spec.Platforms {
		want := "https://example.org/kubediag/releases/download/v9.8.7/" + platforms[i].archive()
		if p.URI != want || p.SHA256 != all[platforms[i].archive()] || p.Bin != platforms[i].program() {
			t.Errorf("krew manifest: %+v, want %s and the digest of that file", p, want)
		}
	}
}

func checkBills(t *testing.T, o options) {
	for name, programs := range map[string]int{"kubediag-linux-arm64": 1, "kubediag-agent-image-linux-amd64": 2, "kubectl-kubediag-windows-arm64": 1} {
		var b bill
		must(t, json.Unmarshal(readRelease(t, o, name+".spdx.json"), &b))
		described, modules := 0, map[string]bool{}
		for _, r := range b.Relationships {
			if r.Type == "DESCRIBES" {
				described++
			}
		}
		for _, p := range b.Packages {
			if modules[p.SPDXID] {
				t.Errorf("%s: %s is there twice", name, p.SPDXID)
			}
			modules[p.SPDXID], modules[p.Name] = true, true
		}
		if described != programs || !modules["github.com/google/go-cmp"] || !modules["std"] || b.CreationInfo.Created != o.date {
			t.Errorf("%s: describes %d programs, want %d; of %d parts; made %s", name, described, programs, len(b.Packages), b.CreationInfo.Created)
		}
	}
}

// checkPush pushes to a registry on loopback, which cuts the first push off.
func checkPush(t *testing.T, o options) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	o.signingKey = filepath.Join(t.TempDir(), "key.pem")
	must(t, os.WriteFile(o.signingKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	var mode atomic.Value
	mode.Store("refuse")
	real := registry.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case mode.Load() == "refuse":
			http.Error(w, "no", http.StatusForbidden)
		case mode.Load() == "cut" && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/v9"):
			panic(http.ErrAbortHandler)
		default:
			real.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	o.registry = strings.TrimPrefix(server.URL, "http://") + "/k"
	if err := push(t.Context(), o); err == nil || !strings.Contains(err.Error(), "push "+o.registry+"/manager:v9.8.7") {
		t.Errorf("refused: %v", err)
	}
	mode.Store("cut")
	if err := push(t.Context(), o); err == nil {
		t.Error("a push that was cut off: no error")
	}
	if _, err := crane.Digest(o.registry + "/manager:v9.8.7"); err == nil {
		t.Error("the tag is there after a push that was cut off")
	}
	mode.Store("serve")
	must(t, push(t.Context(), o))
	for _, i := range images {
		name := o.registry + "/" + i.name
		text, err := crane.Manifest(name + ":v9.8.7")
		must(t, err)
		var index v1.IndexManifest
		must(t, json.Unmarshal(text, &index))
		var got []string
		for _, m := range index.Manifests {
			got = append(got, m.Platform.String())
		}
		if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		checkSignature(t, name, text, &key.PublicKey)
	}
	config, err := crane.Config(o.registry + "/charts/kubediag:9.8.7")
	if err != nil || !strings.Contains(string(config), `"name":"kubediag"`) {
		t.Errorf("chart: configuration %s, %v", config, err)
	}
}

func checkSignature(t *testing.T, name string, signed []byte, key *ecdsa.PublicKey) {
	t.Helper()
	digest := fmt.Sprintf("%x", sha256.Sum256(signed))
	img, err := crane.Pull(name + ":sha256-" + digest + ".sig")
	must(t, err)
	manifest, err := img.Manifest()
	must(t, err)
	layers, err := img.Layers()
	must(t, err)
	r, err := layers[0].Compressed()
	must(t, err)
	payload, err := io.ReadAll(r)
	must(t, err)
	signature, err := base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations[signatureOfBlob])
	sum := sha256.Sum256(payload)
	if err != nil || !ecdsa.VerifyASN1(key, sum[:], signature) || !strings.Contains(string(payload), "sha256:"+digest) {
		t.Errorf("%s: payload %s, %v", name, payload, err)
	}
}

func TestNotesOf(t *testing.T) {
	t.Parallel()
	const changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## v0.2.0 (2026-12-01)\n\n- two\n\n## 0.1.0\n\n- one\n"
	for version, want := range map[string]string{"v0.2.0": "- two", "v0.1.0": "- one", "v0.3.0": "- new", "v0.2.01": "- new"} {
		if got, err := notesOf(changelog, version); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", version, got, err, want)
		}
	}
	if _, err := notesOf("# Changelog\n", "v1.0.0"); err == nil || !strings.Contains(err.Error(), `"v1.0.0"`) {
		t.Errorf("none: %v", err)
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"must be images, pack or push":       {},
		`-version is "0.2.0"`:                {"pack", "-version", "0.2.0"},
		"-registry is empty":                 {"push", "-version", "v0.2.0"},
		"read signing key":                   {"push", "-version", "v0.2.0", "-registry", "x.example.org/k", "-signing-key", "/nosuch"},
		`-registry is "x.example.org/Upper"`: {"push", "-version", "v0.2.0", "-registry", "x.example.org/Upper"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	if i := slices.IndexFunc(platforms, func(p platform) bool { return p.system == "windows" }); platforms[i].program() != "kubectl-kubediag.exe" {
		t.Errorf("on windows the plugin is %q", platforms[i].program())
	}
}
