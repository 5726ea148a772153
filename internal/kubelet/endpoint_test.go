// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"testing"
)

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
