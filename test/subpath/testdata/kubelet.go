// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubelet does with one subPath what a kubelet does, by the kubelet's own package: "prepare" before it creates a
// container, "clean" before it unmounts the volume. It is built with one version of Kubernetes after the other.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run takes the directory of the pod, that of its volume, and the subPath.
func run(verb, pod, volume, sub string) error {
	kubelet := subpath.New(mount.New(""))
	if verb == "clean" {
		return kubelet.CleanSubPaths(pod, "claim")
	}
	if _, err := os.Lstat(filepath.Join(volume, sub)); err != nil { // as its caller does
		if err := kubelet.SafeMakeDir(sub, volume, 0o755); err != nil {
			return err
		}
	}
	_, _, err := kubelet.PrepareSafeSubpath(subpath.Subpath{
		VolumeMountIndex: 0, Path: filepath.Join(volume, sub), VolumeName: "claim", VolumePath: volume, PodDir: pod, ContainerName: "app",
	})
	return err
}
