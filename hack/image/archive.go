// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// save writes an archive of the image under the reference.
func save(img v1.Image, reference, path string) error {
	dir, err := os.MkdirTemp("", "kubediag-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unpacked(img, reference, dir); err != nil {
		return err
	}
	out, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	defer os.Remove(path + ".part")
	defer out.Close()
	w := tar.NewWriter(out)
	if err := addAll(w, dir); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// unpacked writes the image layout and, beside it, the list that docker load reads.
func unpacked(img v1.Image, reference, dir string) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = l.AppendImage(img, layout.WithPlatform(*config.Platform()), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": reference,
		"io.containerd.image.name":          reference,
	}))
	if err != nil {
		return err
	}
	list, err := dockerList(img, reference)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), list, 0o600)
}

func dockerList(img v1.Image, reference string) ([]byte, error) {
	name, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	d := tarball.Descriptor{Config: blob(name), RepoTags: []string{reference}}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		d.Layers = append(d.Layers, blob(digest))
	}
	return json.Marshal(tarball.Manifest{d})
}

// blob is where an image layout keeps a digest.
func blob(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// addAll adds all files below dir in the order of their names.
func addAll(w *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return add(w, filepath.ToSlash(rel), 0o444, content)
	})
}
