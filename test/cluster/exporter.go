// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"kubediag.org/kubediag/test/debian"
)

// ExporterImage has Debian's prometheus-node-exporter for its entrypoint, and the libraries that it needs.
const ExporterImage = "kubediag.org/test/node-exporter:1"

// exporter is where Debian puts it.
const exporter = "/usr/bin/prometheus-node-exporter"

// LoadExporter loads ExporterImage. It installs Debian's package first where that is missing.
func (c *Cluster) LoadExporter(ctx context.Context) error {
	if err := debian.Install(ctx, exporter); err != nil {
		return err
	}
	needs, err := libraries(ctx, exporter)
	if err != nil {
		return err
	}
	files := []file{{"/tmp/", 0o1777, "", nil}}
	for _, path := range append(needs, exporter) {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read program: %w", err)
		}
		files = append(files, file{path, 0o755, "", data})
	}
	return c.load(ctx, func(tarPath string) error {
		return saveImages(tarPath, files, image{ExporterImage, []string{exporter}})
	})
}

// libraries returns the dynamic linker of a program and the libraries that it loads, by the linker's own word. There are
// none for one that is linked statically.
func libraries(ctx context.Context, program string) ([]string, error) {
	linker, err := linkerOf(program)
	if err != nil || linker == "" {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, linker, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("list libraries of %q: %w", program, err)
	}
	paths := []string{linker}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") && !slices.Contains(paths, word) {
			paths = append(paths, word)
		}
	}
	return paths, nil
}

// linkerOf returns the dynamic linker that a program asks for.
func linkerOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("open program: %w", err)
	}
	defer func() { _ = f.Close() }()
	for _, part := range f.Progs {
		if part.Type == elf.PT_INTERP {
			path, err := io.ReadAll(part.Open())
			return string(bytes.TrimRight(path, "\x00")), err
		}
	}
	return "", nil
}
