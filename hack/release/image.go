// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// image is one to build.
type image struct {
	name        string
	binaries    []string // the first is what a container runs
	user        string   // uid:gid that it runs as
	description string
}

// reference is the name under which a runtime stores the image.
func (i image) reference(o options) string { return o.repository + "/" + i.name + ":" + o.version }

// build makes an image of one layer that holds the binaries.
func (i image) build(arch string, o options) (v1.Image, error) {
	content, err := layerOf(filepath.Join(o.bin, "linux_"+arch), i.binaries)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	epoch := v1.Time{Time: time.Unix(0, 0).UTC()}
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: epoch, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: i.user, Entrypoint: []string{"/" + i.binaries[0]}, WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":       "kubediag-" + i.name,
				"org.opencontainers.image.description": i.description,
				"org.opencontainers.image.version":     o.version,
				"org.opencontainers.image.licenses":    "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: epoch, CreatedBy: "kubediag hack/release"}})
}

// layerOf is a tar of executables at the root, which belong to root and have the time of the epoch.
func layerOf(dir string, names []string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		binary, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		err = w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: name, Mode: 0o555, Size: int64(len(binary)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(binary); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
