// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// release is a release that is packed.
type release struct {
	options
	files []file
}

// file is one file of the release page.
type file struct {
	name    string
	content []byte
	mode    os.FileMode
}

func (r *release) add(name string, content []byte) {
	r.files = append(r.files, file{name, content, 0o644})
}

// dir is the folder of the release.
func (o options) dir() string { return filepath.Join(o.dist, o.version) }

// ociDir is the folder with the OCI layouts, one for each image and one for the chart.
func (o options) ociDir() string { return filepath.Join(o.dir(), "oci") }

// packRelease writes all files of a release into a new folder. It removes the files of an earlier call.
func packRelease(_ context.Context, o options) error {
	if err := os.RemoveAll(o.dir()); err != nil {
		return err
	}
	r := &release{options: o}
	for _, step := range []func() error{
		r.addPrograms, r.addPlugins, r.addImages, r.addChart, r.addManifest, r.addMonitoring, r.addNotes, r.addBills, r.addKrew,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	slices.SortFunc(r.files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var sums strings.Builder
	for _, f := range r.files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.content), f.name)
	}
	r.add("SHA256SUMS", []byte(sums.String()))
	for _, f := range r.files {
		if err := os.WriteFile(filepath.Join(o.dir(), f.name), f.content, f.mode); err != nil {
			return err
		}
	}
	fmt.Printf("%s holds %d files of %s\n", o.dir(), len(r.files), o.version)
	if o.registry == "" {
		fmt.Println("REGISTRY is empty: install.yaml and the chart name images of localhost/kubediag, which have to be loaded on each node")
	}
	if o.repoURL == "" {
		fmt.Println("REPO_URL is empty: there is no krew manifest, the chart has no home and no sources, and alerts have no runbook_url")
	}
	fmt.Printf("To tag it: git tag -s -m %s %s %s\n", o.version, o.version, cmp.Or(o.commit, "HEAD"))
	return nil
}

// addImages writes an OCI layout for each image, and a tar of it.
func (r *release) addImages() error {
	for _, i := range images {
		index, err := i.index(r.options)
		if err != nil {
			return err
		}
		if err := r.addLayout(i.name, func(to layout.Path) error {
			return to.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: r.version, imageName: r.imageName(i.name) + ":" + r.version}))
		}); err != nil {
			return err
		}
	}
	return nil
}

// refName is the annotation by which an OCI layout names its content. imageName is that by which ctr images import gives the image the
// name that install.yaml has.
const (
	refName   = "org.opencontainers.image.ref.name"
	imageName = "io.containerd.image.name"
)

// addLayout writes an OCI layout, and adds a tar of it as a file of the release.
func (r *release) addLayout(name string, fill func(layout.Path) error) error {
	dir := filepath.Join(r.ociDir(), name)
	to, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = fill(to)
	}
	if err != nil {
		return fmt.Errorf("write OCI layout of %s: %w", name, err)
	}
	content, err := tarOf(dir)
	r.add(fmt.Sprintf("kubediag-%s-%s.oci.tar", name, r.version), content)
	return err
}

// loadLayout returns the only entry of an OCI layout of the release.
func (o options) loadLayout(name string) (layout.Path, v1.Descriptor, error) {
	at, err := layout.FromPath(filepath.Join(o.ociDir(), name))
	if err != nil {
		return "", v1.Descriptor{}, fmt.Errorf("%w: has make release run?", err)
	}
	index, err := at.ImageIndex()
	if err != nil {
		return "", v1.Descriptor{}, err
	}
	manifest, err := index.IndexManifest()
	if err == nil && len(manifest.Manifests) != 1 {
		err = errors.New("an OCI layout of a release has one entry")
	}
	if err != nil {
		return "", v1.Descriptor{}, fmt.Errorf("read OCI layout %q: %w", at, err)
	}
	return at, manifest.Manifests[0], nil
}
