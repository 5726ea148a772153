// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is one to build.
type image struct {
	name        string // of the binary
	user        string // uid:gid that it runs as
	description string
}

// reference is the name under which a runtime stores the image.
func (i image) reference(o options) string { return o.repository + "/" + i.name + ":" + o.version }

// build makes an image of one layer that holds one file.
func (i image) build(binary []byte, arch string, o options) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		content, err := layerOf(i.name, binary)
		return io.NopCloser(bytes.NewReader(content)), err
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: arch,
		Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       i.user,
			Entrypoint: []string{"/" + i.name},
			WorkingDir: "/",
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
	return mutate.Append(img, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: time.Unix(0, 0).UTC()}, CreatedBy: "kubediag hack/image"},
	})
}

// layerOf is a tar of one executable at the root.
func layerOf(name string, binary []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := add(w, name, 0o555, binary); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// add writes a file of the epoch that belongs to root.
func add(w *tar.Writer, name string, mode int64, content []byte) error {
	err := w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
