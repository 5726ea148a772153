// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
)

// bench runs the benchmarks of every tier, one package at a time so that they do not disturb each other, and shows their
// output. A pattern selects some of them.
func bench(ctx context.Context, only string) error {
	found, err := findTests(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, tag := range []string{"", "kernel", "api", "ceph", "cluster"} {
		var dirs []string
		for _, f := range found {
			if f.bench && f.tag == tag && !slices.Contains(dirs, f.dir) {
				dirs = append(dirs, f.dir)
			}
		}
		if len(dirs) == 0 {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-run=^$", "-bench=" + cmp.Or(only, "."), "-benchmem", "-p=1", "-timeout=150m", "-tags=" + tag}, dirs...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			errs = append(errs, fmt.Errorf("running benchmarks of %v: %w", dirs, err))
		}
	}
	return errors.Join(errs...)
}
