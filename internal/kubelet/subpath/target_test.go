// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

func TestPointsAt(t *testing.T) {
	t.Parallel()
	pod := kubelettest.NewPod()
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{mounts("configmap", "a"), {Name: "secret", MountPath: "/s"}, mounts("claim", "b")}
	const dir = "/var/lib/kubelet/pods/5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10/volume-subpaths/"
	mounting := func(path string) string {
		return `error mounting "` + path + `" to rootfs at "/x": mount ` + path + `:/x (via /proc/self/fd/6), flags: 0x5000: no such file or directory: unknown`
	}
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"index 0":                    {mounting(dir + "configmap/app/0"), "volumeMounts[0]"},
		"another root":               {mounting(strings.Replace(dir, "/var/lib", "/data", 1) + "configmap/app/0"), "volumeMounts[0]"},
		"escaped":                    {strings.ReplaceAll(mounting(dir+"configmap/app/0"), `"`, `\\\"`), "volumeMounts[0]"},
		"a claim's own name":         {mounting(dir + "pvc-0b1c/app/2"), "volumeMounts[2]"},
		"missing":                    {"lstat " + dir + "configmap/app/0 failed: no such file or directory", "volumeMounts[0]"},
		"worded like it":             {`Error: failed to prepare subPath for volumeMount "tls" of container "app"`, "a subPath"},
		"index 1 has no subPath":     {text: mounting(dir + "secret/app/1")},
		"index 10":                   {text: mounting(dir + "configmap/app/10")},
		"another container":          {text: mounting(dir + "configmap/sidecar/0")},
		"another volume":             {text: mounting(dir + "secret/app/0")},
		"another pod":                {text: mounting(strings.Replace(dir, "5f0e5d0c", "00000000", 1) + "configmap/app/0")},
		"cut short":                  {text: mounting(dir + "configmap")},
		"cut in the middle":          {text: "mounting " + dir},
		"a file onto a directory":    {text: strings.ReplaceAll(mounting(dir+"configmap/app/0"), "no such file or", "not a")},
		"no mount":                   {text: "exec: /bin/app: no such file or directory"},
		"a mount, of what is unsaid": {text: "mount: mount(2) failed: No such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := Hint{"x", c.text, fault.Suspect(c.text)}.PointsAt(pod, "app")
			if ok != (c.want != "") || !strings.Contains(got, c.want) {
				t.Errorf("points at %q, %v, want %q", got, ok, c.want)
			}
		})
	}
}

func FuzzTargets(f *testing.F) {
	f.Add("a/b/volume-subpaths/c/d/1")
	f.Add("/volume-subpaths//volume-subpaths/")
	f.Fuzz(func(t *testing.T, text string) {
		found := targets(text)
		if len(found) > maxTargets || len(found) != min(maxTargets, strings.Count(text, "/volume-subpaths/")) && !strings.Contains(text, "volume-subpaths/volume-subpaths") {
			t.Errorf("%d targets in %q", len(found), text)
		}
		for _, x := range found {
			if !strings.Contains(text, x.podUID+"/volume-subpaths/"+x.volume) || strings.Trim(x.index, "0123456789") != "" {
				t.Errorf("%+v is not in %q", x, text)
			}
		}
	})
}
