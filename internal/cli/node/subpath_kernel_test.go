// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestSubPathOfFUSEByScanAndProbe: another client has deleted its directory, and made it again or not. No spec is given.
func TestSubPathOfFUSEByScanAndProbe(t *testing.T) {
	for name, c := range map[string]struct {
		answer sys.Errno
		again  bool
		code   fault.Code
	}{
		"alive": {0, false, ""}, "forgotten": {sys.ENOENT, false, fault.StaleSubPath}, "forgotten and made again": {sys.ENOENT, true, fault.StaleSubPath},
		"stale": {sys.ESTALE, true, fault.StaleSubPath}, "unlinked": {0, false, fault.StaleSubPath}, "unlinked and made again": {0, true, fault.StaleSubPath},
	} {
		t.Run(name, func(t *testing.T) {
			v := volumetest.New(t)
			must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
			point := v.Scene.Point(v.Pod, volumetest.Volume, "app", 0)
			v.Bind(filepath.Join(v.Point, "sub"), point)
			t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
			if c.code != "" {
				v.Delete("sub", c.answer, c.again)
			}
			if r := probeAsJSON(t, point); r.Code != c.code {
				t.Errorf("probe: %+v, want %q", r, c.code)
			}
			report, _ := scanJSON(t, nil, "--kubelet-root", v.Root) // its status is that of the report
			var codes []fault.Code
			for _, f := range report.Faults {
				codes = append(codes, f.Code)
			}
			if c.code == "" && len(codes) > 0 || c.code != "" && (len(codes) != 1 || codes[0] != c.code || report.Faults[0].Mount.Point != point) {
				t.Errorf("scan: %v, want %q alone: %+v", codes, c.code, report)
			}
		})
	}
}

// TestProbeOfSubPathThatCannotBeJudged: the one mount that shows the source of a bind is denied, and the bind itself answers.
func TestProbeOfSubPathThatCannotBeJudged(t *testing.T) {
	v := volumetest.New(t)
	must(t, os.Mkdir(filepath.Join(v.Point, "sub"), 0o755))
	point, other := v.Scene.Point(v.Pod, volumetest.Volume, "app", 0), filepath.Join(t.TempDir(), "other")
	v.Bind(filepath.Join(v.Point, "sub"), point)
	must(t, errors.Join(os.Mkdir(other, 0o755), sys.BindMount(v.Point, other)))
	t.Cleanup(func() {
		_ = systest.UnmountPath(point, true)
		_ = systest.UnmountPath(other, true)
	})
	denied := fmt.Sprintf("delete:%s:%d:false", filepath.Base(v.Dir), sys.EACCES)
	if _, err := os.Lstat(filepath.Join(v.Staging, filepath.Dir(v.Dir), denied)); !errors.Is(err, sys.ENOENT) {
		t.Fatal(err)
	}
	must(t, errors.Join(systest.UnmountPath(v.Point, true), systest.UnmountPath(v.Staging, true)))
	if out, err := verbtest.Run(t, NewProbeCommand(), point); err == nil || errors.Is(err, verb.ErrFaults) || out != "" || !strings.Contains(err.Error(), other) {
		t.Errorf("probe: %v\n%s, want that %q could not be judged", err, out, other)
	}
	if report, _ := scanJSON(t, nil, "--kubelet-root", v.Root); len(report.Faults) > 0 || report.Verdict.NotJudged != 1 {
		t.Errorf("scan: %+v, want one place that is not judged", report)
	}
}
