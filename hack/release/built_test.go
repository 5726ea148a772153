// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package main

import (
	"bytes"
	"debug/macho"
	"debug/pe"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/debian"
)

// builtRelease is a release that make release has made of the last commit, in a clone of the source tree.
type builtRelease struct {
	options
	clone string
}

func buildRelease(t *testing.T) builtRelease {
	t.Helper()
	b := builtRelease{clone: filepath.Join(t.TempDir(), "clone")}
	b.version, b.dist = "v9.8.7", filepath.Join(b.clone, "dist")
	output(t, exec.Command("git", "clone", "-q", "--no-hardlinks", "../..", b.clone))
	make := exec.Command("make", "-C", b.clone, "release", "VERSION=v9.8.7", "REGISTRY=registry.example.org/k", "REPO_URL=https://example.org/kubediag")
	make.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOFLAGS=") || strings.HasPrefix(v, "MAKE") }), "GOFLAGS=")
	if out := output(t, make); !strings.Contains(out, "\nTo tag it: git tag -s -m v9.8.7 v9.8.7 ") {
		t.Errorf("make release does not name the command that tags:\n%s", out)
	}
	return b
}

// output returns the output of a command that has to succeed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// TestMakeRelease makes a release of the last commit twice, in two folders, runs its programs for this machine and for arm64, and heals a pod
// with nothing but its files. Last, it installs the same commit from source.
func TestMakeRelease(t *testing.T) {
	first := buildRelease(t)
	t.Run("again", func(t *testing.T) {
		if diff := cmp.Diff(sums(t, first.options), sums(t, buildRelease(t).options)); diff != "" {
			t.Errorf("another folder makes another release (-first +second):\n%s", diff)
		}
	})
	t.Run("arm64", func(t *testing.T) { checkARM64(t, first) })
	t.Run("pod", func(t *testing.T) { checkHealsPod(t, first, cluster.Kubernetes137) })
	t.Run("plugins", func(t *testing.T) { checkBuiltPlugins(t, first.options) })
	t.Run("quick start", func(t *testing.T) { checkQuickStart(t, first, cluster.Kubernetes137) })
}

// checkARM64 runs the programs for arm64 by user-mode emulation, which lacks openat2, open_tree and the queries of namespaces: a scan of the
// node or a repair is out of its reach. The programs start, and read a bundle as those for amd64 do.
func checkARM64(t *testing.T, b builtRelease) {
	const emulator = "qemu-aarch64-static"
	must(t, debian.Install(t.Context(), emulator))
	qemu, err := debian.LookPath(emulator)
	must(t, err)
	native, foreign := filepath.Join(b.dir(), "kubediag-linux-amd64"), filepath.Join(b.dir(), "kubediag-linux-arm64")
	var about struct{ Version, Commit, Date, Go, Platform string }
	must(t, json.Unmarshal([]byte(output(t, exec.Command(qemu, foreign, "version", "-o", "json"))), &about))
	commit := strings.TrimSpace(output(t, exec.Command("git", "rev-parse", "HEAD")))
	if about.Version != b.version || about.Commit != commit || about.Date == "" || about.Platform != "linux/arm64" {
		t.Errorf("version of the program for arm64: %+v, want %s of %s", about, b.version, commit)
	}
	dir := t.TempDir()
	bundle := filepath.Join(dir, "node.tar.gz")
	must(t, os.MkdirAll(filepath.Join(dir, "kubelet", "pods"), 0o700))
	output(t, exec.Command(native, "bundle", "--kubelet-root", filepath.Join(dir, "kubelet"), "--output", bundle))
	duration := regexp.MustCompile(`"milliseconds": [0-9.]+`)
	for _, args := range [][]string{{"scan", "--from", bundle, "-o", "json"}, {"explain", "HungMount"}, {"scan", "--help"}} {
		want, wantErr := exec.Command(native, args...).CombinedOutput()
		got, err := exec.Command(qemu, append([]string{foreign}, args...)...).CombinedOutput()
		want, got = duration.ReplaceAll(want, nil), duration.ReplaceAll(got, nil)
		if diff := cmp.Diff(string(want), string(got)); diff != "" || (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %v on arm64, %v on amd64 (-amd64 +arm64):\n%s", args, err, wantErr, diff)
		}
	}
	for _, program := range []string{"agent", "manager"} {
		if out := output(t, exec.Command(qemu, filepath.Join(b.clone, "bin", "linux_arm64", program), "--help")); !strings.Contains(out, "--metrics-bind-address") {
			t.Errorf("%s --help: %s", program, out)
		}
	}
}

// checkBuiltPlugins holds that the plugin is a program of the system and the architecture that its archive is for.
func checkBuiltPlugins(t *testing.T, o options) {
	for arch, want := range map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64} {
		program := untarGz(t, readRelease(t, o, platform{"darwin", arch}.archive()))["kubectl-kubediag 755"]
		f, err := macho.NewFile(strings.NewReader(program))
		if err != nil || f.Cpu != want {
			t.Errorf("plugin for darwin on %s: %v", arch, err)
		}
	}
	for arch, want := range map[string]uint16{"amd64": pe.IMAGE_FILE_MACHINE_AMD64, "arm64": pe.IMAGE_FILE_MACHINE_ARM64} {
		program := unzip(t, readRelease(t, o, platform{"windows", arch}.archive()))["kubectl-kubediag.exe 755"]
		f, err := pe.NewFile(bytes.NewReader([]byte(program)))
		if err != nil || f.Machine != want {
			t.Errorf("plugin for windows on %s: %v", arch, err)
		}
	}
}
