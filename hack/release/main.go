// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command release packs the static binaries of bin/linux_<arch> into container images, without a container engine and without
// a registry. An image is written to dist/kubediag-<name>-<arch>.tar.
//
// An archive is one of docker save, which containerd, podman and Docker load. The same binaries give the same bytes: all
// times are the epoch. An image holds nothing but binaries: no shell, no package manager, no certificates.
//
// go-containerregistry makes the layers, configurations and archives. ko would build the binaries itself and fetch a base
// image from a registry. The module is that of the product, whose tests need go-containerregistry as well.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// images are what there is to pack.
var images = []image{
	{
		name: "manager", binaries: []string{"manager"}, user: "65532:65532",
		description: "Binds each Diagnosis to its node and checks OperationSets. Needs no privilege.",
	},
	{
		name: "agent", binaries: []string{"agent", "kubediag"}, user: "0:0",
		description: "Runs diagnoses on its node and repairs mounts. Needs to be privileged, with the PID namespace of the host.",
	},
	{
		name: "cli", binaries: []string{"kubediag", "kubectl-kubediag"}, user: "0:0",
		description: "The command kubediag, for kubectl debug node. Needs to be privileged, with the PID namespace of the host.",
	},
}

func main() {
	var o options
	arch := flag.String("arch", "amd64,arm64", "architectures, by comma")
	flag.StringVar(&o.repository, "repository", "docker.io/kubediag", "what stands before the name of an image")
	flag.StringVar(&o.version, "version", "unknown", "tag of the images")
	flag.StringVar(&o.bin, "bin", "bin", "folder of the binaries")
	flag.StringVar(&o.dist, "dist", "dist", "folder of the archives")
	flag.Parse()
	for _, i := range images {
		for a := range strings.SplitSeq(*arch, ",") {
			path, err := i.pack(a, o)
			if err != nil {
				fmt.Fprintf(os.Stderr, "release: packing %s for %s: %v\n", i.name, a, err)
				os.Exit(1)
			}
			fmt.Printf("%s holds %s\n", path, i.reference(o))
		}
	}
}

type options struct {
	repository, version, bin, dist string
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
