// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStartTimeOfARealProcess(t *testing.T) {
	t.Parallel()
	first, err := readStartTime("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := readStartTime("/proc/self"); err != nil || second != first || strings.Trim(first, "0123456789") != "" {
		t.Errorf("start times %q and %q, %v, want a number that stays", first, second, err)
	}
	if _, err := readStartTime(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v, want ENOENT", err)
	}
}

func TestFlagValue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"none":              {nil, ""},
		"joined":            {[]string{"--root-dir=/a"}, "/a"},
		"apart":             {[]string{"--root-dir", "/a"}, "/a"},
		"the last one wins": {[]string{"--root-dir=/a", "--root-dir", "/b"}, "/b"},
		"longer name":       {[]string{"--root-dir-x=/a", "--root-dir2", "/b"}, ""},
		"without a value":   {[]string{"--root-dir"}, ""},
		"in a value":        {[]string{"--x=--root-dir=/a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := flagValue(c.args, "root-dir"); got != c.want {
				t.Errorf("value %q, want %q", got, c.want)
			}
		})
	}
}

// TestArgumentsThatK3sHandsOn: its own arguments name those of the kubelet, which follow them.
func TestArgumentsThatK3sHandsOn(t *testing.T) {
	t.Parallel()
	process := candidateProcess{dir: t.TempDir()}
	own := []string{"agent", "--kubelet-arg=root-dir=/a", "--kubelet-arg", "v=2", "--kubelet-arg"}
	if err := os.WriteFile(process.dir+"/cmdline", []byte(strings.Join(own, "\x00")+"\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := process.loadArguments(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(own, "--root-dir=/a", "--v=2"), process.args); diff != "" {
		t.Errorf("arguments of the kubelet (-want +got):\n%s", diff)
	}
}

func TestReadOnlyPort(t *testing.T) {
	t.Parallel()
	file := func(content string) string {
		name := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--config=" + name
	}
	for name, c := range map[string]struct {
		program string
		args    []string
		want    int
		fails   bool
	}{
		"by default":             {"kubelet", nil, 10255, false},
		"by flag":                {"kubelet", []string{"--read-only-port=0"}, 0, false},
		"by configuration":       {"kubelet", []string{file("readOnlyPort: 10299\n")}, 10299, false},
		"not by configuration":   {"kubelet", []string{file("port: 10250\n")}, 0, false},
		"flag overrules":         {"kubelet", []string{file("readOnlyPort: 10299\n"), "--read-only-port", "12"}, 12, false},
		"of another program":     {"k3s", nil, 0, false},
		"no number":              {"kubelet", []string{"--read-only-port=x"}, 0, true},
		"no port":                {"kubelet", []string{file("readOnlyPort: 70000\n")}, 0, true},
		"no configuration there": {"kubelet", []string{"--config=/nowhere/at/all"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := candidateProcess{program: c.program, args: c.args, dir: "/proc/self"}
			if got, err := p.readOnlyPort(); got != c.want || (err != nil) != c.fails {
				t.Errorf("port %d, %v, want %d", got, err, c.want)
			}
		})
	}
}
