// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is one to build.
type image struct {
	name        string
	binaries    []string // a container runs the first
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
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	epoch := v1.Time{Time: time.Unix(0, 0).UTC()}
	oci := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err := mutate.ConfigFile(oci, &v1.ConfigFile{
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

// index names the image of each architecture.
func (i image) index(o options) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range o.arches {
		img, err := i.build(arch, o)
		if err != nil {
			return nil, fmt.Errorf("build image %s for %s: %w", i.name, arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

// packArchives writes one archive per image and architecture.
func packArchives(_ context.Context, o options) error {
	for _, i := range images {
		for _, arch := range o.arches {
			path, err := i.pack(arch, o)
			if err != nil {
				return fmt.Errorf("pack %s for %s: %w", i.name, arch, err)
			}
			fmt.Printf("%s holds %s\n", path, i.reference(o))
		}
	}
	return nil
}

// pack writes the archive of one image and gives its path.
func (i image) pack(arch string, o options) (string, error) {
	img, err := i.build(arch, o)
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag(i.reference(o))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.dist, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(o.dist, "kubediag-"+i.name+"-"+arch+".tar")
	return path, tarball.WriteToFile(path, tag, img)
}

// layerOf is a tar of executables at the root, which belong to root and have the time of the epoch.
func layerOf(dir string, names []string) ([]byte, error) {
	var files []file
	for _, name := range names {
		binary, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, binary, 0o555})
	}
	return tarred(files)
}
