// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// packed packs an image for arm64 and gives the path of the archive.
func packed(t *testing.T, i image) string {
	t.Helper()
	dir := t.TempDir()
	o := options{repository: "example.org/k", version: "v1.2.3", arches: []string{"arm64"}, bin: dir, dist: filepath.Join(dir, "dist")}
	must(t, os.MkdirAll(filepath.Join(dir, "linux_arm64"), 0o755))
	for _, name := range i.binaries {
		must(t, os.WriteFile(filepath.Join(dir, "linux_arm64", name), []byte("binary of "+name), 0o600))
	}
	path, err := i.pack("arm64", o)
	must(t, err)
	return path
}

func TestArchiveIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile(packed(t, images[1]))
	must(t, err)
	second, err := os.ReadFile(packed(t, images[1]))
	must(t, err)
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same binary differ")
	}
}

func TestArchiveLoads(t *testing.T) {
	t.Parallel()
	want := map[string]struct {
		user  string
		files map[string]string
	}{
		"manager": {"65532:65532", map[string]string{"manager 555": "binary of manager"}},
		"agent":   {"0:0", map[string]string{"agent 555": "binary of agent", "kubediag 555": "binary of kubediag"}},
		"cli":     {"0:0", map[string]string{"kubediag 555": "binary of kubediag", "kubectl-kubediag 555": "binary of kubectl-kubediag"}},
	}
	for _, i := range images {
		tag, err := name.NewTag("example.org/k/" + i.name + ":v1.2.3")
		must(t, err)
		img, err := tarball.ImageFromPath(packed(t, i), &tag)
		must(t, err)
		if err := validate.Image(img); err != nil {
			t.Error(err)
		}
		config, err := img.ConfigFile()
		must(t, err)
		got := []string{config.OS, config.Architecture, config.Config.User, config.Config.Entrypoint[0], config.Config.Labels["org.opencontainers.image.version"]}
		if diff := cmp.Diff([]string{"linux", "arm64", want[i.name].user, "/" + i.binaries[0], "v1.2.3"}, got); diff != "" {
			t.Errorf("%s: configuration (-want +got):\n%s", i.name, diff)
		}
		files := mutate.Extract(img)
		if diff := cmp.Diff(want[i.name].files, untar(t, files)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", i.name, diff)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	}
}

// untar returns the content of each file by its name and mode.
func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		content, err := io.ReadAll(tr)
		must(t, err)
		files[fmt.Sprintf("%s %o", h.Name, h.Mode)] = string(content)
	}
}
