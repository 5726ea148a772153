// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// probeAsJSON is the verb's answer as a program reads it.
func probeAsJSON(t testing.TB, name string) probeReport {
	t.Helper()
	out, err := verbtest.Run(t, NewProbeCommand(), "-o", "json", name)
	var r probeReport
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
		t.Fatalf("%v: %v\n%s", err, jsonErr, out)
	}
	if (r.Code != "") != errors.Is(err, verb.ErrFaults) || r.Code == "" && err != nil {
		t.Errorf("code %q and error %v", r.Code, err)
	}
	if r.SchemaVersion != 1 || r.Path != name || r.Evidence == nil {
		t.Errorf("report: %+v", r)
	}
	return r
}

func TestProbeDistinguishesStates(t *testing.T) {
	dir := t.TempDir()
	served := filepath.Join(dir, "served")
	must(t, os.Mkdir(served, 0o700))
	server := kerneltest.FUSE(t, served)
	if r := probeAsJSON(t, served); r.Code != "" || r.Mount.Point != served || !strings.HasPrefix(r.Mount.FSType, "fuse") {
		t.Errorf("alive: %+v", r)
	}
	if r := probeAsJSON(t, served+"/dir"); r.Code != "" || r.Mount.Point != served {
		t.Errorf("a directory of it: %+v", r)
	}

	source, bound := filepath.Join(dir, "source"), filepath.Join(dir, "bound")
	must(t, os.Mkdir(source, 0o700))
	must(t, os.Mkdir(bound, 0o700))
	must(t, mount.Bind(source, bound))
	t.Cleanup(func() { systest.UnmountPath(bound, true) })
	if r := probeAsJSON(t, bound); r.Code != "" {
		t.Errorf("a bind: %+v", r)
	}
	must(t, os.Remove(source))
	if r := probeAsJSON(t, bound); r.Code != fault.DeletedVolumeSource || len(r.Evidence) == 0 {
		t.Errorf("a bind of what was removed: %+v", r)
	}

	place := filepath.Join(dir, "pods", "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10", "volume-subpaths", "config", "app", "0")
	file := filepath.Join(dir, "app.ini")
	must(t, os.MkdirAll(filepath.Dir(place), 0o700))
	must(t, errors.Join(os.WriteFile(place, nil, 0o600), os.WriteFile(file, nil, 0o600), mount.Bind(file, place)))
	t.Cleanup(func() { systest.UnmountPath(place, true) })
	if r := probeAsJSON(t, place); r.Code != "" {
		t.Errorf("a subPath: %+v", r)
	}
	must(t, os.Remove(file))
	if r := probeAsJSON(t, place); r.Code != fault.StaleSubPath || len(r.Evidence) == 0 || strings.Contains(r.Evidence[0], "directory") {
		t.Errorf("a subPath of a file that was removed: %+v", r)
	}
	if text, err := verbtest.Run(t, NewProbeCommand(), place); !errors.Is(err, verb.ErrFaults) || !strings.Contains(text, "repair     unmount that one mount and bind the current file") {
		t.Errorf("a stale subPath: %v\n%s", err, text)
	}

	link := filepath.Join(dir, "link")
	must(t, os.Symlink("served/dir", link))
	if out, err := verbtest.Run(t, NewProbeCommand(), link); err != nil || !strings.Contains(out, "mount      "+served+",") {
		t.Errorf("a symbolic link into it: %v\n%s", err, out)
	}

	server.Kill()
	if r := probeAsJSON(t, served); r.Code != fault.DisconnectedFUSE || len(r.Evidence) == 0 {
		t.Errorf("its server was killed: %+v", r)
	}
	if r := probeAsJSON(t, served+"/dir"); r.Code != fault.DisconnectedFUSE {
		t.Errorf("a directory of it: %+v", r)
	}
	text, err := verbtest.Run(t, NewProbeCommand(), served)
	if !errors.Is(err, verb.ErrFaults) || !strings.HasPrefix(text, "DisconnectedFUSE (critical)") || !strings.Contains(text, "\n  repair") {
		t.Errorf("%v:\n%s", err, text)
	}
}

func TestProbeDoesNotHang(t *testing.T) {
	served := filepath.Join(t.TempDir(), "served")
	must(t, os.Mkdir(served, 0o700))
	kerneltest.FUSE(t, served)
	start := time.Now()
	// A path is known to hang only after a wait of half of this.
	out, err := verbtest.Run(t, NewProbeCommand(), "--timeout", "4s", "-o", "json", served+"/hang")
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	var r probeReport
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil || r.Code != fault.HungMount || !errors.Is(err, verb.ErrFaults) {
		t.Errorf("%v, %v:\n%s", err, jsonErr, out)
	}
}

func TestProbeReportsMissingPrivileges(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"nothing there":    {[]string{filepath.Join(dir, "none")}, "no such file or directory"},
		"empty":            {[]string{""}, "path is empty"},
		"no path":          {nil, "PATH is missing"},
		"loop of links":    {[]string{filepath.Join(dir, "loop")}, "too many levels of symbolic links"},
		"timeout too low":  {[]string{"--timeout", "1ms", dir}, `--timeout=1ms: must be between 100ms and 5m0s`},
		"timeout too high": {[]string{"--timeout", "1h", dir}, `--timeout=1h0m0s: must be between 100ms and 5m0s`},
		"format":           {[]string{"-o", "yaml", dir}, `must be "text" or "json"`},
	} {
		out, err := verbtest.Run(t, NewProbeCommand(), c.args...)
		if err == nil || errors.Is(err, verb.ErrFaults) || !strings.Contains(err.Error(), c.says) || out != "" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
