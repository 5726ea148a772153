// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/install"
)

// subPaths is a pod with a container for each kind of volume, and no more in it than a subPath of that volume. All
// volumes hold the same text, the revision, and each container prints, when it starts, the revision that it sees.
type subPaths struct {
	*env
	pod      *corev1.Pod
	dir      string // the hostPath volume
	revision int
	runtime  cri.Client
	started  map[string]bool // IDs of all containers that the runtime has started
	nudges   int
}

// kind is a kind of volume. The container and the volume have its name.
type kind struct {
	name   string
	plugin string               // the kubelet's directory for such volumes
	mount  corev1.VolumeMount   // what makes it a subPath
	source *corev1.VolumeSource // nil: the hostPath volume
	files  []string             // where the revision is in the volume
}

// value is the one item of the ConfigMap and of the Secret.
var value = []corev1.KeyToPath{{Key: "value", Path: "value"}}

var (
	configMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "subpaths"}, Items: value}
	label     = corev1.ObjectFieldSelector{FieldPath: "metadata.labels['revision']"}
)

var kinds = []kind{
	{"config", "kubernetes.io~configmap", corev1.VolumeMount{SubPath: "value"},
		&corev1.VolumeSource{ConfigMap: configMap}, []string{"value"}},
	{"expression", "kubernetes.io~configmap", corev1.VolumeMount{SubPathExpr: "$(NAME)"},
		&corev1.VolumeSource{ConfigMap: configMap}, []string{"value"}},
	{"secret", "kubernetes.io~secret", corev1.VolumeMount{SubPath: "value"},
		&corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "subpaths", Items: value}}, []string{"value"}},
	{"downward", "kubernetes.io~downward-api", corev1.VolumeMount{SubPath: "value"},
		&corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{Path: "value", FieldRef: &label}},
		}}, []string{"value"}},
	{"projected", "kubernetes.io~projected", corev1.VolumeMount{SubPath: "folder"}, // the bind is one of a folder
		&corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: configMap.LocalObjectReference, Items: []corev1.KeyToPath{{Key: "value", Path: "folder/value"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "folder/label", FieldRef: &label}}}},
		}}}, []string{"folder/value", "folder/label"}},
	{"empty", "kubernetes.io~empty-dir", corev1.VolumeMount{SubPath: "sub dir"},
		&corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, []string{"sub dir/value"}},
	{"host", "", corev1.VolumeMount{SubPath: "value"}, nil, []string{"value"}},
}

// look prints every text that is at the place of the subPath, once.
const look = `echo seen $(find /seen -type f | while read f; do cat "$f"; echo; done | sort -u); exec sleep 1000000`

func (k kind) container() corev1.Container {
	k.mount.Name, k.mount.MountPath = k.name, "/seen"
	return corev1.Container{
		Name: k.name, Image: install.Busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sh", "-c", look},
		Env: []corev1.EnvVar{{Name: "NAME", Value: "value"}}, VolumeMounts: []corev1.VolumeMount{k.mount},
	}
}

func (k kind) volume(dir string) corev1.Volume {
	if k.source == nil {
		k.source = &corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
	}
	return corev1.Volume{Name: k.name, VolumeSource: *k.source}
}

// deploySubPaths makes the pod and waits until it runs.
func (e *env) deploySubPaths(t *testing.T) *subPaths {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "subpaths", Labels: map[string]string{"app": "subpaths", "revision": "r0"}}
	s := &subPaths{env: e, dir: t.TempDir(), started: map[string]bool{}, pod: &corev1.Pod{ObjectMeta: meta}}
	s.runtime.Socket = func(context.Context) (string, error) { return e.RuntimeEndpoint(), nil }
	must(t, os.WriteFile(filepath.Join(s.dir, "value"), []byte("r0"), 0o644))
	meta.Labels = nil
	must(t, e.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"value": "r0"}}))
	must(t, e.Create(t.Context(), &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": []byte("r0")}}))
	for _, k := range kinds {
		s.pod.Spec.Containers = append(s.pod.Spec.Containers, k.container())
		s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, k.volume(s.dir))
	}
	must(t, e.Create(t.Context(), s.pod))
	s.awaitStart(t)
	return s
}

func (s *subPaths) uid() string { return string(s.pod.UID) }

// text is the revision as it stands in the volumes.
func (s *subPaths) text() string { return fmt.Sprint("r", s.revision) }

// update writes another revision to everything that the volumes are made of, and waits until it is in the volumes.
func (s *subPaths) update(t *testing.T) {
	t.Helper()
	s.updateObjects(t)
	folder := filepath.Join(s.KubeletRoot(), "pods", s.uid(), "volumes/kubernetes.io~empty-dir/empty/sub dir")
	must(t, os.RemoveAll(folder))
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "value"), []byte(s.text()), 0o644))
	must(t, os.WriteFile(filepath.Join(s.dir, "new"), []byte(s.text()), 0o644))
	must(t, os.Rename(filepath.Join(s.dir, "new"), filepath.Join(s.dir, "value")))
	s.patch(t, &corev1.Pod{}, fmt.Sprintf(`{"metadata":{"labels":{"revision":%q}}}`, s.text()))
	nudge := s.nudger(t)
	s.Wait(t, "the volumes to have revision "+s.text(), func(context.Context) bool {
		nudge()
		return !slices.ContainsFunc(kinds, func(k kind) bool { return !s.upToDate(k) })
	})
}

// updateObjects writes another revision to the ConfigMap and the Secret. When that gets into the volumes is left to the
// kubelet.
func (s *subPaths) updateObjects(t *testing.T) {
	t.Helper()
	s.revision++
	s.patch(t, &corev1.ConfigMap{}, fmt.Sprintf(`{"data":{"value":%q}}`, s.text()))
	s.patch(t, &corev1.Secret{}, fmt.Sprintf(`{"stringData":{"value":%q}}`, s.text()))
}

// patch changes the object that has the name of the pod.
func (s *subPaths) patch(t *testing.T, object client.Object, patch string) {
	t.Helper()
	object.SetNamespace("default")
	object.SetName("subpaths")
	must(t, s.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// upToDate reports whether the volume has the revision on the node.
func (s *subPaths) upToDate(k kind) bool {
	return !slices.ContainsFunc(k.files, func(name string) bool {
		text, err := os.ReadFile(filepath.Join(s.volume(k), name))
		return err != nil || string(text) != s.text()
	})
}

// volume is where the volume is on the node.
func (s *subPaths) volume(k kind) string {
	if k.source == nil {
		return s.dir
	}
	return filepath.Join(s.KubeletRoot(), "pods", s.uid(), "volumes", k.plugin, k.name)
}

// kill ends all containers and removes their records, so that the kubelet starts them again without any back-off. A
// container that is just being started cannot be removed.
func (s *subPaths) kill(t *testing.T) {
	t.Helper()
	var err error
	s.Wait(t, "the containers to be removed", func(ctx context.Context) bool {
		if err != nil && !strings.Contains(err.Error(), "is in starting state") {
			t.Fatal(err)
		}
		err = s.RemoveContainers(ctx, s.uid())
		return err == nil
	})
}

// restart starts all containers again, and checks that none of them failed to start and that each sees the revision.
func (s *subPaths) restart(t *testing.T) {
	t.Helper()
	s.kill(t)
	s.awaitStart(t)
	for _, k := range kinds {
		s.checkSeen(t, k)
	}
}

// awaitStart waits until the runtime has exactly one record of each container, and that one is of a container that runs
// and did not before. A container that fails to start leaves a record, of which the kubelet keeps one.
func (s *subPaths) awaitStart(t *testing.T) {
	t.Helper()
	nudge := s.nudger(t)
	for _, k := range kinds {
		s.Wait(t, "container "+k.name+" to run", func(ctx context.Context) bool {
			nudge()
			records, err := s.runtime.Records(ctx, s.uid(), k.name)
			must(t, err)
			for _, r := range records {
				if r.Exited {
					t.Fatalf("revision %s: container %s ended: %+v", s.text(), k.name, r)
				}
			}
			if len(records) != 1 || records[0].Started.IsZero() || s.started[records[0].ID] {
				return false
			}
			s.started[records[0].ID] = true
			return true
		})
	}
	s.Wait(t, "the status to say that the pod runs", func(ctx context.Context) bool {
		must(t, s.Get(ctx, client.ObjectKeyFromObject(s.pod), s.pod))
		return running(s.pod) && !slices.ContainsFunc(s.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			return !s.started[id]
		})
	})
}

// nudge has the kubelet look at the pod now. It does so whenever the pod changes; one in back-off it would not look at
// for 10 seconds and more.
func (s *subPaths) nudge(t *testing.T) (mark string) {
	t.Helper()
	s.nudges++
	mark = fmt.Sprint(s.nudges)
	s.patch(t, &corev1.Pod{}, fmt.Sprintf(`{"metadata":{"annotations":{"nudge":%q}}}`, mark))
	return mark
}

// nudger gives a function that nudges every three seconds.
func (s *subPaths) nudger(t *testing.T) func() {
	last := time.Now()
	return func() {
		t.Helper()
		if time.Since(last) > 3*time.Second {
			s.nudge(t)
			last = time.Now()
		}
	}
}

// checkSeen compares the last line that a container printed with the revision. A container prints it a moment after its
// start.
func (s *subPaths) checkSeen(t *testing.T, k kind) {
	t.Helper()
	var seen string
	last := corev1.PodLogOptions{Container: k.name, TailLines: new(int64(1))}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		log, err := s.set.CoreV1().Pods("default").GetLogs("subpaths", &last).DoRaw(t.Context())
		must(t, err)
		if seen = strings.TrimSpace(string(log)); seen == "seen "+s.text() {
			return
		}
	}
	t.Errorf("container %s prints %q, and revision %s was in its volume when it started", k.name, seen, s.text())
}

// printed gives what containers of a kind have printed, all that ever ran.
func (s *subPaths) printed(t *testing.T, k kind) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/var/log/pods", "default_subpaths_"+s.uid(), k.name, "*.log"))
	must(t, err)
	var lines []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if _, line, ok := strings.Cut(line, " stdout F "); ok {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// binds gives the mounts at the places of the subPaths, by kind.
func (s *subPaths) binds(t *testing.T) map[string]mountinfo.Mount {
	t.Helper()
	found := map[string]mountinfo.Mount{}
	for _, m := range s.mounts(t) {
		for _, k := range kinds {
			if strings.HasSuffix(m.Point, s.point(k)) {
				found[k.name] = m
			}
		}
	}
	return found
}

// point is the place of a subPath below the kubelet's root.
func (s *subPaths) point(k kind) string {
	return fmt.Sprintf("/pods/%s/volume-subpaths/%s/%s/0", s.uid(), k.name, k.name)
}

// allStale reports whether the source of every bind is deleted.
func (s *subPaths) allStale(t *testing.T) bool {
	t.Helper()
	binds := s.binds(t)
	for _, m := range binds {
		if !m.Deleted() {
			return false
		}
	}
	return len(binds) == len(kinds)
}

// places gives the mounts at the places of the subPaths, as they are seen, by kind.
func (s *subPaths) places(t *testing.T) map[string]place {
	t.Helper()
	found := map[string]place{}
	for name, m := range s.binds(t) {
		found[name] = s.mountedAt(t, m.Point)
	}
	return found
}

// checkAllRenewed looks at what is where the binds were that are stale.
func (s *subPaths) checkAllRenewed(t *testing.T, stale map[string]place) {
	t.Helper()
	for _, k := range kinds {
		// If the subPath is an expression, it comes to "value".
		s.checkRenewed(t, stale[k.name], filepath.Join(s.volume(k), cmp.Or(k.mount.SubPath, "value")))
	}
}

// witness reads every status that the pod gets from now on. The function that it gives ends that, and says what of it
// speaks of a container that could not be started.
func (s *subPaths) witness(t *testing.T) (end func() []string) {
	t.Helper()
	must(t, s.Get(t.Context(), client.ObjectKeyFromObject(s.pod), s.pod))
	w, err := s.set.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", "subpaths").String(), ResourceVersion: s.pod.ResourceVersion,
	})
	must(t, err)
	t.Cleanup(w.Stop)
	var mu sync.Mutex
	var failures []string
	changes, mark := 0, ""
	go func() {
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			mu.Lock()
			if !ok {
				failures = append(failures, fmt.Sprintf("the watch says %+v", event.Object))
			} else {
				failures = append(failures, failedStarts(pod)...)
				mark = pod.Annotations["nudge"]
			}
			changes++
			mu.Unlock()
		}
	}()
	return func() []string {
		last := s.nudge(t)
		s.Wait(t, "the watch to have seen everything", func(context.Context) bool {
			mu.Lock()
			defer mu.Unlock()
			return mark == last
		})
		mu.Lock()
		defer mu.Unlock()
		t.Logf("the watch has seen %d changes of the pod", changes)
		return failures
	}
}

// failedStarts lists what in a status speaks of a container that could not be started.
func failedStarts(pod *corev1.Pod) []string {
	var found []string
	for _, c := range pod.Status.ContainerStatuses {
		// Why the kubelet could not prepare a subPath itself is in its log alone, and counted there.
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "CrashLoopBackOff" &&
			!strings.HasPrefix(w.Message, "failed to prepare subPath") {
			found = append(found, fmt.Sprintf("container %s waits: %s: %s", c.Name, w.Reason, w.Message))
		}
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if end != nil && (end.StartedAt.Unix() <= 0 || strings.Contains(end.Message, "no such file")) {
				found = append(found, fmt.Sprintf("container %s ended: %s: %s", c.Name, end.Reason, end.Message))
			}
		}
	}
	return found
}
