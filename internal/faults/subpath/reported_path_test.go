// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// emptyNode has nothing at any path, and writes down which paths the kubelet's words had it look up.
func emptyNode() pathLookup {
	l := &Lookups{}
	l.makeMaps()
	return pathLookup{l, &mountns.View{}}
}

// waitsFor is a pod with a claim, a hostPath and a message of the kubelet.
func waitsFor(reason, message string) *corev1.Pod {
	pod := kubelettest.NewPod()
	pod.UID = "11111111-2222-3333-4444-555555555555"
	pod.Spec.Volumes = append(pod.Spec.Volumes, hostPathOf("sock", "/run/x.sock"))
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data", SubPath: "x"}, {Name: "sock", MountPath: "/x.sock"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: state(true, reason, message, 0)}}
	return pod
}

const configError = "CreateContainerConfigError"

// TestReportedPaths: a message of the kubelet chooses what is looked up only among the paths of the pod itself.
func TestReportedPaths(t *testing.T) {
	t.Parallel()
	const own = "/var/lib/kubelet/pods/11111111-2222-3333-4444-555555555555"
	claims := map[string]string{"pv-1": "/srv/pv"}
	for message, want := range map[string]string{
		"stat /srv/pv: no such file or directory":                                                        "/srv/pv",
		"lstat /srv/pv/: no such file or directory":                                                      "/srv/pv",
		"Error: stat /srv/pv: no such file or directory":                                                 "/srv/pv",
		`path "/srv/pv" does not exist`:                                                                  "/srv/pv",
		`MountVolume.NewMounter initialization failed for volume "pv-1" : path "/srv/pv" does not exist`: "/srv/pv",
		`MountVolume.SetUp failed for volume "pv-1" : hostPath type check failed: /srv/pv is not a file`: "/srv/pv",
		"hostPath type check failed: /run/x.sock is not a socket file":                                   "/run/x.sock",
		"stat " + own + "/volumes/kubernetes.io~csi/pvc-1/mount: no such file or directory":              "/k/pods/11111111-2222-3333-4444-555555555555/volumes/kubernetes.io~csi/pvc-1/mount",
		"stat /var/lib/kubelet/pods/22222222-2222-3333-4444-555555555555/x: no such file or directory":   "",
		"stat /k/pods/other/x: no such file or directory":                                                "",
		"stat /data/kubelet/plugins/kubernetes.io/csi/x/globalmount: no such file or directory":          "",
		"stat /srv/pv/below/it: no such file or directory":                                               "/srv/pv/below/it",
		"stat /srv/pv2: no such file or directory":                                                       "",
		"stat /srv: no such file or directory":                                                           "",
		"stat /opt/of/no/volume: no such file or directory":                                              "",
		"stat /etc/shadow: no such file or directory":                                                    "",
		"stat /proc/1/cwd/x: no such file or directory":                                                  "",
		"stat " + own + "/../x: no such file or directory":                                               "",
		"stat /srv/../etc/shadow: no such file or directory":                                             "",
		"stat srv/pv: no such file or directory":                                                         "",
		"stat /: no such file or directory":                                                              "",
		"stat /srv/\x1b[2J: no such file or directory":                                                   "",
		"stat /srv/\xff: no such file or directory":                                                      "",
		"stat /srv/a\nb: no such file or directory":                                                      "",
		"stat /" + strings.Repeat("a/", 2100) + "a: no such file or directory":                           "",
		strings.Repeat("x", maxReport) + "stat /srv/pv: no such file or directory":                       "",
		`exec: "/srv/pv": stat /srv/pv: no such file or directory: unknown`:                              "",
		"stat /srv/pv: permission denied":                                                                "",
		`secret "x" not found`:                                                                           "",
	} {
		n := emptyNode()
		found := podSources{node: testLayout(), pod: waitsFor(configError, message), claims: claims}.find(n, "app")
		if got := strings.Join(slices.Collect(maps.Keys(n.Reported)), " "); got != want {
			t.Errorf("%.200q: looked up %q, want %q", message, got, want)
		}
		if (want != "") != (len(found) == 1) || want != "" && (found[0].Code != fault.MissingBindSource || !strings.Contains(found[0].Evidence[0], want)) {
			t.Errorf("%.200q: found %+v", message, found)
		}
		place := fault.PlaceSource
		if want == "/run/x.sock" {
			place = fault.PlaceSocket
		}
		if len(found) > 0 && found[0].Details.Place != place {
			t.Errorf("%.200q: found at %s, want %s", message, found[0].Details.Place, place)
		}
	}
}

// TestSocketsHaveTheirPlace: a socket that is missing, or that something else has taken the place of, is not advised to be created.
func TestSocketsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	directory, missing := Lookup{Stat: sys.Stat{Mode: 0o040755}}, Lookup{Errno: sys.ENOENT}
	for name, c := range map[string]struct {
		at   Lookup
		path string
		kind corev1.HostPathType
		code fault.Code
		want fault.Place
	}{
		"no socket":              {missing, "/run/csi/plugin", corev1.HostPathSocket, fault.MissingBindSource, fault.PlaceSocket},
		"no file with its name":  {missing, "/run/a.sock", corev1.HostPathFile, fault.MissingBindSource, fault.PlaceSocket},
		"no file":                {missing, "/etc/a.conf", corev1.HostPathFile, fault.MissingBindSource, fault.PlaceSource},
		"no directory":           {missing, "/run/a.sock", corev1.HostPathDirectory, fault.MissingBindSource, fault.PlaceSource},
		"no device":              {missing, "/dev/a.sock", corev1.HostPathCharDev, fault.MissingBindSource, fault.PlaceSource},
		"a directory, no socket": {directory, "/run/a", corev1.HostPathSocket, fault.SourceTypeMismatch, fault.PlaceSocket},
		"a directory, no file":   {directory, "/run/a.sock", corev1.HostPathFile, fault.SourceTypeMismatch, fault.PlaceSource},
	} {
		pod := waitsFor("ContainerCreating", "")
		pod.Spec.Volumes = []corev1.Volume{hostPathOf("sock", c.path)}
		pod.Spec.Volumes[0].HostPath.Type = &c.kind
		found := podSources{node: testLayout(), pod: pod}.find(pathLookup{Lookups: &Lookups{HostPaths: map[string]Lookup{c.path: c.at}}}, "app")
		if len(found) != 1 || found[0].Code != c.code || found[0].Details.Place != c.want {
			t.Errorf("%s: found %+v, want %s at %s", name, found, c.code, c.want)
		}
	}
}

func testLayout() *kubelet.Node { return kubelet.Elsewhere("/k", "/k/pods") }

// TestReportedPathsOfOthers: a path that is of no claim of the pod is not looked up, and neither is one that something else than the
// kubelet gives. Claims are read only if one of them may have the path.
func TestReportedPathsOfOthers(t *testing.T) {
	t.Parallel()
	const message = "stat /srv/pv: no such file or directory"
	for name, c := range map[string]struct {
		reason, message string
		change          func(*corev1.Pod)
		claims          map[string]string
		reads, looks    bool
	}{
		"a claim that lies there":               {claims: map[string]string{"pv-0": "/opt", "pv-1": "/srv/pv/"}, reads: true, looks: true},
		"being created":                         {reason: "ContainerCreating", claims: map[string]string{"pv-1": "/srv"}, reads: true, looks: true},
		"claims that lie elsewhere":             {claims: map[string]string{"pv-1": "/srv/p", "pv-2": "/srv/pv/below"}, reads: true},
		"claims that are not known":             {reads: true},
		"no claim":                              {change: func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[1:] }},
		"a hostPath of the pod":                 {message: "stat /run/x.sock: no such file or directory", looks: true},
		"no path":                               {message: `secret "x" not found`},
		"a hook":                                {reason: "PostStartHookError"},
		"a crash":                               {reason: "CrashLoopBackOff"},
		"a runtime, whose words may be foreign": {reason: "RunContainerError"},
	} {
		pod := waitsFor(cmp.Or(c.reason, configError), cmp.Or(c.message, message))
		if c.change != nil {
			c.change(pod)
		}
		n, reads := emptyNode(), false
		p := podSources{node: testLayout(), pod: pod}
		p.readClaims(t.Context(), func(context.Context, *corev1.Pod) map[string]string {
			reads = true
			return c.claims
		}, p.containers())
		found := p.find(n, "app")
		if looks := len(n.Reported) > 0; reads != c.reads || looks != c.looks || looks != (len(found) > 0) {
			t.Errorf("%s: read claims %v, looked up %v, found %+v, want %v and a lookup: %v", name, reads, n.Reported, found, c.reads, c.looks)
		}
		if p = (podSources{node: testLayout(), pod: pod}); c.reads && len(p.find(n, "app")) > 0 {
			t.Errorf("%s: found without an API server", name)
		}
	}
}
