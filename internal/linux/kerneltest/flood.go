// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

const (
	floodRole = "flood"
	copyRole  = "flood-copy"
)

// Flood makes mounts in a mount namespace of its own, at paths of some 3,000 bytes,
// and copies of that namespace. Every other mount is of the file system at dir, where
// there is one. They go with the test.
func Flood(t testing.TB, dir string, mounts, namespaces int) *Actor {
	t.Helper()
	return FloodAs(t, sys.Clone{}, dir, mounts, namespaces)
}

// FloodAs is Flood by a process of other namespaces: of a user namespace, it is an attacker without any privilege.
func FloodAs(t testing.TB, o sys.Clone, dir string, mounts, namespaces int) *Actor {
	t.Helper()
	return StartWith(t, sys.PrivateMounts(o), floodRole, dir, t.TempDir(), strconv.Itoa(mounts), strconv.Itoa(namespaces-1))
}

// flood plays the role.
func flood(args []string, ready func(string)) error {
	dir, base := args[0], args[1]
	wanted, _ := strconv.Atoi(args[2])
	copies, _ := strconv.Atoi(args[3])
	if err := sys.SetPropagation("/", sys.Private, true); err != nil {
		return err
	}
	if err := sys.NewMount("flood", base, "tmpfs", ""); err != nil {
		return err
	}
	made, err := floodBelow(filepath.Join(base, strings.Repeat(strings.Repeat("x", 199)+"/", 14)), dir, wanted)
	if err != nil {
		return err
	}
	for range copies {
		if err := startCopy(); err != nil {
			return err
		}
	}
	ready(strconv.Itoa(made))
	WaitForEnd()
	return nil
}

// floodBelow binds trees of mounts in themselves, which doubles them.
func floodBelow(base, dir string, wanted int) (made int, err error) {
	for n := 0; made < wanted; n++ {
		tree := filepath.Join(base, "tree-"+strconv.Itoa(n))
		if err := os.MkdirAll(tree, 0o755); err != nil {
			return made, err
		}
		if err := sys.NewMount("tree", tree, "tmpfs", ""); err != nil {
			return made, err
		}
		size := 1
		if bound := filepath.Join(tree, "bound"); dir != "" {
			size = 2
			if err := errors.Join(os.Mkdir(bound, 0o755), sys.BindMount(dir, bound)); err != nil {
				return made, err
			}
		}
		for i := 0; made+2*size <= wanted; i++ {
			at := filepath.Join(tree, fmt.Sprintf("%02d", i))
			if err := os.Mkdir(at, 0o755); err != nil {
				return made, err
			}
			if err := systest.BindTree(tree, at); err != nil {
				return made, fmt.Errorf("bind a tree of %d mounts: %w", size, err)
			}
			size *= 2
		}
		made += size
	}
	return made, nil
}

// startCopy has a process be in a copy of the namespace until the end.
func startCopy() error {
	file, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer file.Close()
	defer w.Close()
	_, err = os.StartProcess("/proc/self/exe", []string{os.Args[0]}, &os.ProcAttr{
		Env: RoleEnv(copyRole), Files: []*os.File{os.Stdin, w, os.Stderr}, Sys: sys.PrivateMounts(sys.Clone{}),
	})
	if err != nil {
		return err
	}
	_, err = file.Read(make([]byte, 1))
	return err
}

func floodCopy(_ []string, ready func(string)) error {
	ready("")
	WaitForEnd()
	return nil
}
