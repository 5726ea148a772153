// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/debian"
)

// claim is the claim of the sample config/samples/fuse-workload.yaml.
const claim = "model"

// addDriver installs the CSI driver of the tests, whose volumes are served by bindfs, and a claim of one.
func addDriver(ctx context.Context, c *cluster.Cluster, kubectl string) error {
	if err := debian.Install(ctx, "bindfs"); err != nil {
		return err
	}
	program, data := filepath.Join(c.Dir(), "driver"), filepath.Join(c.Dir(), "fuse-volume")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./test/csi/driver")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the driver: %w\n%s", err, out)
	}
	if err := c.LoadBinaryImage(ctx, csi.Image, program); err != nil {
		return fmt.Errorf("load the driver: %w", err)
	}
	if err := os.Mkdir(data, 0o755); err != nil {
		return fmt.Errorf("make the directory of the volume: %w", err)
	}
	manifest, err := csi.Manifest(c.KubeletRoot(), c.NodeName(), "bindfs", "-f", data, "{}")
	if err != nil {
		return err
	}
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig="+c.Kubeconfig(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(manifest + "---" + csi.VolumeManifest(claim, ""))
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("apply the driver: %w\n%s", err, out)
	}
	return nil
}
