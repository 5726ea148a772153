// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subpath builds programs that prepare and clean subPath binds by the package that the kubelet itself uses, one
// for each version of Kubernetes. Its tests compare with them what package kubelet says about kubelets. It is for tests
// alone.
package subpath

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Versions are those that there is a program of. kubernetes-VERSION is the module that pins what it is built from.
var Versions = []string{"1.18", "1.36", "1.37"}

// Program is the name of the program of a version.
func Program(version string) string { return "kubelet-subpath-" + version }

// Build builds the program of a version into dir.
func Build(ctx context.Context, version, dir string) error {
	source, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "kubediag.org/kubediag/test/subpath").Output()
	if err != nil {
		return fmt.Errorf("find sources of program: %w", err)
	}
	from := strings.TrimSpace(string(source))
	if dir, err = filepath.Abs(dir); err != nil { // it is built in another directory
		return err
	}
	text, err := os.ReadFile(filepath.Join(from, "testdata", "kubelet.go"))
	if err != nil {
		return err
	}
	if version == "1.18" { // the package has moved since
		text = bytes.Replace(text, []byte("k8s.io/mount-utils"), []byte("k8s.io/utils/mount"), 1)
	}
	main := filepath.Join(dir, Program(version)+".go")
	if err := os.WriteFile(main, text, 0o600); err != nil {
		return err
	}
	defer os.Remove(main)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, Program(version)), main)
	build.Dir, build.Env = filepath.Join(from, "kubernetes-"+version), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build program of Kubernetes %s: %w\n%s", version, err, out)
	}
	return nil
}
