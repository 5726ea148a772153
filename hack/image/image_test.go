// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// packed packs a manager for arm64 and gives the path of the archive.
func packed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	o := options{repository: "example.org/k", version: "v1.2.3", bin: dir, dist: filepath.Join(dir, "dist")}
	if err := os.MkdirAll(filepath.Join(dir, "linux_arm64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "linux_arm64", "manager"), []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := images[0].pack("arm64", o)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchiveIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile(packed(t))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(packed(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same binary differ")
	}
}

func TestArchiveLoadsBothWays(t *testing.T) {
	t.Parallel()
	path := packed(t)
	docker, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, img := range map[string]v1.Image{"docker": docker, "oci": ociImage(t, path)} {
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		got := []string{config.OS, config.Architecture, config.Config.User, config.Config.Entrypoint[0], config.Config.Labels["org.opencontainers.image.version"]}
		if diff := cmp.Diff([]string{"linux", "arm64", "65532:65532", "/manager", "v1.2.3"}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		files := mutate.Extract(img)
		defer files.Close()
		if diff := cmp.Diff(map[string]string{"manager": "binary"}, untar(t, files)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// ociImage reads the archive as an image layout.
func ociImage(t *testing.T, path string) v1.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for name, content := range untar(t, f) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Manifests[0].Annotations["io.containerd.image.name"]; got != "example.org/k/manager:v1.2.3" {
		t.Errorf("name for containerd is %q", got)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}
