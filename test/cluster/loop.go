// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/debian"
)

// AddDisk makes an empty disk of size bytes and gives the path of its loop device and of the file below that. Neither
// outlives the cluster, even if a process has it mounted.
func (c *Cluster) AddDisk(ctx context.Context, size int64) (device, image string, err error) {
	if err := debian.Install(ctx, diskPrograms...); err != nil {
		return "", "", err
	}
	f, err := os.CreateTemp(c.dir, "disk-*")
	if err != nil {
		return "", "", fmt.Errorf("make disk: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return "", "", fmt.Errorf("make disk: %w", err)
	}
	if err := c.run(ctx, "losetup", "--find", f.Name()); err != nil {
		return "", "", err
	}
	for _, name := range loopsOver(f.Name()) {
		return filepath.Join("/dev", name), f.Name(), nil
	}
	return "", "", fmt.Errorf("find loop device over %q: not there", f.Name())
}

// loopsOver lists the loop devices over the file at path, or over the files below it, by their names in /dev.
func loopsOver(path string) []string {
	var names []string
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is a good one
	for _, file := range all {
		backing, _ := os.ReadFile(file) // a device that is gone is over no file
		over := strings.TrimSuffix(strings.TrimSuffix(string(backing), "\n"), " (deleted)")
		if over == path || strings.HasPrefix(over, path+"/") {
			names = append(names, filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return names
}

// removeLoops frees the loop devices over files of the cluster in dir. One that is mounted yet is freed with the mount.
func removeLoops(dir string) error {
	var errs []error
	for _, name := range loopsOver(dir) {
		if err := clearLoop(filepath.Join("/dev", name)); err != nil {
			errs = append(errs, fmt.Errorf("free loop device %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func clearLoop(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return err // ENXIO: it is free already
	}
	return nil
}
