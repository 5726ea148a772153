// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Names of the one pod that the stand-in runs, those of the walkthrough.
const (
	podUID        = "29da79e5-386c-4e0d-82c1-215f93ff955d"
	podNamespace  = "default"
	podName       = "core2-5b89896b96-d44xl"
	containerName = "debian"
	volumeName    = "logrotateconf"
	subPath       = "nginx.log"
	nodeName      = "my-node"
)

// standIn plays the kubelet and the container runtime for one pod with one container. Its files and mounts are real,
// and made the way kubelets before 1.19 make them. It binds a subPath once, and never checks whether the source is
// still there. Its container is no process, but a mount at the place where the container's would be.
type standIn struct {
	root  string // the kubelet's root directory
	point string // where the subPath is bound
	inner string // where the container sees it

	mu      sync.Mutex
	pod     *corev1.Pod
	records []cri.Container // of containers that never started
	backoff time.Time       // no start before
}

// newStandIn makes the directories and the first version of the volume below dir.
func newStandIn(dir, content string) (*standIn, error) {
	s := &standIn{root: filepath.Join(dir, "kubelet"), pod: newPod()}
	s.point = filepath.Join(s.root, "pods", podUID, "volume-subpaths", volumeName, containerName, "0")
	s.inner = filepath.Join(dir, "rootfs", "etc/logrotate.d", subPath)
	for _, file := range []string{s.point, s.inner} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(s.volume(), 0o755); err != nil {
		return nil, err
	}
	if err := s.update(content); err != nil {
		return nil, err
	}
	return s, os.Symlink(filepath.Join("..data", subPath), filepath.Join(s.volume(), subPath))
}

func (s *standIn) volume() string {
	return filepath.Join(s.root, "pods", podUID, "volumes", "kubernetes.io~configmap", volumeName)
}

// update writes the volume again as the kubelet does: a directory with the time in its name, a link to it that is put
// in place at once, and the old directory removed.
func (s *standIn) update(content string) error {
	name := time.Now().UTC().Format("..2006_01_02_15_04_05.000000000")
	dir, link := filepath.Join(s.volume(), name), filepath.Join(s.volume(), "..data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, subPath), []byte(content), 0o644); err != nil {
		return err
	}
	old, err := os.Readlink(link)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, link+"_tmp"); err != nil {
		return err
	}
	if err := os.Rename(link+"_tmp", link); err != nil || old == "" {
		return err
	}
	return os.RemoveAll(filepath.Join(s.volume(), old))
}

// start starts the container: the kubelet's part, which binds the subPath unless something is bound there already, and
// the runtime's, which binds that into the container.
func (s *standIn) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := mount.Inspect(s.point); errors.Is(err, mount.ErrNotMounted) || errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(s.point, nil, 0o640); err != nil {
			return err
		}
		source, err := filepath.EvalSymlinks(filepath.Join(s.volume(), subPath))
		if err != nil {
			return err
		}
		if err := mount.Bind(source, s.point); err != nil {
			return err
		}
	}
	if err := mount.Bind(s.point, s.inner); err != nil {
		s.fail(err)
		return err
	}
	s.setState(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}, true)
	return nil
}

// stop ends the container.
func (s *standIn) stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, err := mount.Inspect(s.inner)
	if err != nil {
		return err
	}
	s.setState(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}, false)
	return mount.Unmount(ctx, state.ID, mount.Options{})
}

// sync is the kubelet's loop: it starts the container if it does not run and the back-off is over.
func (s *standIn) sync(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.due() {
				_ = s.start() // a failure is in the pod's status
			}
		}
	}
}

func (s *standIn) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.pod.Status.ContainerStatuses[0].Ready && time.Now().After(s.backoff)
}

// Pod is the one pod.
func (s *standIn) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if namespace != s.pod.Namespace || name != s.pod.Name {
		return nil, fmt.Errorf("get pod %q: %w", namespace+"/"+name, kubelet.ErrPodNotFound)
	}
	return s.pod.DeepCopy(), nil
}

// contentLine is what the container reads, or why it cannot.
func (s *standIn) contentLine() string {
	b, err := os.ReadFile(s.inner)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(string(b), "\n")
}

// Records lists what the runtime remembers of containers that never started.
func (s *standIn) Records(_ context.Context, uid, container string) ([]cri.Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid != podUID || container != containerName {
		return nil, nil
	}
	return slices.Clone(s.records), nil
}

// Remove forgets one of them. The kubelet counts its back-off from the newest.
func (s *standIn) Remove(_ context.Context, record cri.Container) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = slices.DeleteFunc(s.records, func(r cri.Container) bool { return r.ID == record.ID })
	if len(s.records) == 0 {
		s.backoff = time.Time{}
	}
	return nil
}

// fail keeps the record of a container that the runtime could not start, and writes its status.
func (s *standIn) fail(err error) {
	now := time.Now()
	s.backoff = now.Add(10 * time.Second)
	s.records = append(s.records, cri.Container{
		ID: fmt.Sprintf("%s-%d", containerName, len(s.records)+1), PodUID: podUID, Name: containerName,
		Exited: true, Created: now, Finished: now, ExitCode: 128, Reason: "StartError",
	})
	status := &s.pod.Status.ContainerStatuses[0]
	status.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 128, Reason: "StartError", FinishedAt: metav1.Now(),
		Message: fmt.Sprintf("unable to start container process: error during container init: error mounting %q to rootfs at %q: %v",
			s.point, "/etc/logrotate.d/"+subPath, err),
	}}
	status.RestartCount++
	s.setState(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason:  "CrashLoopBackOff",
		Message: "back-off 10s restarting failed container=" + containerName + " pod=" + podName + "_" + podNamespace + "(" + podUID + ")",
	}}, false)
}

func (s *standIn) setState(state corev1.ContainerState, running bool) {
	status := &s.pod.Status.ContainerStatuses[0]
	status.State, status.Ready, status.Started = state, running, &running
}

// newPod is the pod of the walkthrough as the API server would return it.
func newPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: podName, UID: podUID, Labels: map[string]string{"app": "core2"}},
		Spec: corev1.PodSpec{
			NodeName: nodeName,
			Containers: []corev1.Container{{
				Name: containerName, Image: "debian:12", Command: []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: volumeName, MountPath: "/etc/logrotate.d/" + subPath, SubPath: subPath}},
			}},
			Volumes: []corev1.Volume{{Name: volumeName, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "nginx-logrotate"},
				Items:                []corev1.KeyToPath{{Key: subPath, Path: subPath}},
			}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: containerName, Image: "debian:12", ContainerID: "standin://" + containerName,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
			}},
		},
	}
}
