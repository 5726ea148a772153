// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"path"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/test/growthtest"
)

func hostDirs(dirs ...string) (h HostDirs) {
	h.Add(dirs...)
	return h
}

// TestHostDirs compares the search by name with a search that compares each directory.
func TestHostDirs(t *testing.T) {
	t.Parallel()
	some := []string{"/", "/a", "/a/b", "/a/b/", "/ab", "/a/b/c", "/x//y", "/x/y/z", "/ä"}
	for _, without := range some {
		dirs := slices.DeleteFunc(slices.Clone(some), func(d string) bool { return d == without || d == "/" && without != "/a" })
		h := hostDirs(dirs...)
		for _, dir := range []string{"/", "/a", "/a/b", "/a/b/d", "/ab/c", "/x", "/x/y", "/x/y/z/0", "/y", "/ä/1", "/äb"} {
			want := ""
			if i := slices.IndexFunc(dirs, func(d string) bool { return overlaps(dir, path.Clean(d)) }); i >= 0 {
				want = dirs[i]
			}
			if got, ok := h.overlapping(dir); got != want || ok != (want != "") {
				t.Errorf("%s among %q: %q, %v, want %q", dir, dirs, got, ok, want)
			}
		}
	}
	var none HostDirs
	if got, ok := none.overlapping("/a"); ok {
		t.Errorf("%q of none", got)
	}
}

// TestLintGrowsWithTheWorkloads holds that the work on workloads does not grow with the square of their number, though each is compared with the
// directories in which all others mount.
func TestLintGrowsWithTheWorkloads(t *testing.T) {
	growthtest.Check(t, 1000, func(n int) func() {
		var m Manifests
		for i := range n {
			spec := &corev1.PodSpec{}
			for name, mode := range map[string]corev1.MountPropagationMode{"mounts": corev1.MountPropagationBidirectional, "reads": corev1.MountPropagationNone} {
				spec.Volumes = append(spec.Volumes, corev1.Volume{
					Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: fmt.Sprintf("/srv/%s/%d", name, i)}},
				})
				spec.Containers = append(spec.Containers, corev1.Container{
					Name: name, SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
					VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/m", MountPropagation: &mode}},
				})
			}
			m.Workloads = append(m.Workloads, Workload{Kind: "Pod", Name: fmt.Sprint("p", i), Spec: spec})
		}
		return func() { m.Check(Options{}) }
	})
}
