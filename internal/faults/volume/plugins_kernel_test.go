// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestBrokenMountsOfDrivers: a dead mount of a driver is listed among the places that were not judged, and so is a staging path that dies before its
// pod has the volume, or while the pod has another mount of it. A mount that answers is not listed, nor is the staging path of a broken volume: the
// fault of that volume covers it.
func TestBrokenMountsOfDrivers(t *testing.T) {
	s := bareScene(t, deepDir)
	own := filepath.Join(s.Node.PluginsDir(), "other.example.com", "mnt")
	s.must(os.MkdirAll(own, 0o755))
	t.Cleanup(func() { _ = systest.UnmountPath(own, true) })
	other := kerneltest.StartWith(t, nil, "serve", own, "content", "dir")
	s.Serve("old")
	look := func(when string, scope mountstate.Scope, broken int, want ...string) {
		t.Helper()
		var survey *volume.Survey
		kerneltest.Await(t, when+": all mounts to be asked, and listed as they are", func() bool { // there may be no time for one
			survey = s.survey(scope)
			var got []string
			for _, p := range survey.Unknown.Places {
				if strings.Contains(p.Reason, string(fault.DisconnectedFUSE)) {
					got = append(got, p.Volume+" "+p.Point)
				} else {
					got = append(got, p.Reason)
				}
			}
			diff := cmp.Diff(want, got)
			if diff != "" || len(survey.Broken()) != broken {
				t.Logf("%s: broken %+v, not judged (-want +got):\n%s", when, survey.Broken(), diff)
			}
			return diff == "" && len(survey.Broken()) == broken
		})
		again := survey.Record().Judge(func(string) *corev1.Pod { return s.Pod })
		if diff := cmp.Diff(survey.Unknown, again.Unknown); diff != "" {
			t.Errorf("%s: by what was written down (-want +got):\n%s", when, diff)
		}
	}
	node, pod := mountstate.Scope{}, mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}}
	look("all is well", node, 0)
	other.Kill()
	s.Kill()
	look("before the pod has it", node, 0, pvName+" "+s.Staging, " "+own)
	look("before the pod has it, for the pod", pod, 0, pvName+" "+s.Staging)

	s.must(sys.BindMount(s.Staging, s.Point)) // the pod has the dead one
	look("the pod has it", node, 1, " "+own)
	s.must(systest.UnmountPath(s.Point, true))
	alive := kerneltest.StartWith(t, nil, "serve", s.Point, "content", "dir")
	look("the pod has another one", pod, 0, pvName+" "+s.Staging)
	alive.Kill()
}
