// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

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

// demoKubelet plays the kubelet and the container runtime for one pod with one container. Its files and mounts are
// real, and made the way kubelets before 1.19 make them. It binds a subPath once, and never checks whether the source
// is still there. Its container is no process, but a mount at the place where the container's would be.
type demoKubelet struct {
	root          string // the kubelet's root directory
	point         string // where the subPath is bound
	containerPath string // where the container sees it

	mu      sync.Mutex
	pod     *corev1.Pod
	records []cri.Container // of containers that never started
	backoff time.Time       // no start before
}

// newDemoKubelet makes the directories and the first version of the volume below dir.
func newDemoKubelet(dir, content string) (*demoKubelet, error) {
	s := &demoKubelet{root: filepath.Join(dir, "kubelet")}
	// The pod of the walkthrough, as the API server would return it.
	s.pod = &corev1.Pod{
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
	s.point = filepath.Join(s.root, "pods", podUID, "volume-subpaths", volumeName, containerName, "0")
	s.containerPath = filepath.Join(dir, "rootfs", "etc/logrotate.d", subPath)
	for _, file := range []string{s.point, s.containerPath} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(s.volumeDir(), 0o755); err != nil {
		return nil, err
	}
	if err := s.updateVolume(content); err != nil {
		return nil, err
	}
	return s, os.Symlink(filepath.Join("..data", subPath), filepath.Join(s.volumeDir(), subPath))
}

func (k *demoKubelet) volumeDir() string {
	return filepath.Join(k.root, "pods", podUID, "volumes", "kubernetes.io~configmap", volumeName)
}

// updateVolume writes the volume again as the kubelet does: a directory with the time in its name, a link to it that is
// put in place at once, and the old directory removed.
func (k *demoKubelet) updateVolume(content string) error {
	name := time.Now().UTC().Format("..2006_01_02_15_04_05.000000000")
	dir, link := filepath.Join(k.volumeDir(), name), filepath.Join(k.volumeDir(), "..data")
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
	return os.RemoveAll(filepath.Join(k.volumeDir(), old))
}

// startContainer starts the container: the kubelet's part, which binds the subPath unless something is bound there
// already, and the runtime's, which binds that into the container.
func (k *demoKubelet) startContainer() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := mount.Inspect(k.point); errors.Is(err, mount.ErrNotMounted) || errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(k.point, nil, 0o640); err != nil {
			return err
		}
		source, err := filepath.EvalSymlinks(filepath.Join(k.volumeDir(), subPath))
		if err != nil {
			return err
		}
		if err := mount.Bind(source, k.point); err != nil {
			return err
		}
	}
	err := mount.Bind(k.point, k.containerPath)
	if err == nil {
		k.setState(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}, true)
		return nil
	}
	// The runtime keeps the record of a container that it could not start, and the kubelet writes its status.
	now := time.Now()
	k.backoff = now.Add(10 * time.Second)
	k.records = append(k.records, cri.Container{
		ID: fmt.Sprintf("%s-%d", containerName, len(k.records)+1), PodUID: podUID, Name: containerName,
		Exited: true, Created: now, Finished: now, ExitCode: 128, Reason: "StartError",
	})
	status := &k.pod.Status.ContainerStatuses[0]
	status.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 128, Reason: "StartError", FinishedAt: metav1.Now(),
		Message: fmt.Sprintf("unable to start container process: error during container init: error mounting %q to rootfs at %q: %v",
			k.point, "/etc/logrotate.d/"+subPath, err),
	}}
	status.RestartCount++
	k.setState(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason:  "CrashLoopBackOff",
		Message: "back-off 10s restarting failed container=" + containerName + " pod=" + podName + "_" + podNamespace + "(" + podUID + ")",
	}}, false)
	return err
}

// stopContainer ends the container.
func (k *demoKubelet) stopContainer(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	state, err := mount.Inspect(k.containerPath)
	if err != nil {
		return err
	}
	k.setState(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}, false)
	return mount.Unmount(ctx, state.ID, mount.Options{})
}

// syncLoop is the kubelet's loop: it starts the container if it does not run and the back-off is over.
func (k *demoKubelet) syncLoop(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.mu.Lock()
			due := !k.pod.Status.ContainerStatuses[0].Ready && time.Now().After(k.backoff)
			k.mu.Unlock()
			if due {
				_ = k.startContainer() // a failure is in the pod's status
			}
		}
	}
}

// Pod is the one pod.
func (k *demoKubelet) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if namespace != k.pod.Namespace || name != k.pod.Name {
		return nil, fmt.Errorf("get pod %q: %w", namespace+"/"+name, kubelet.ErrPodNotFound)
	}
	return k.pod.DeepCopy(), nil
}

// contentLine is what the container reads, or why it cannot.
func (k *demoKubelet) contentLine() string {
	b, err := os.ReadFile(k.containerPath)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(string(b), "\n")
}

// Records lists what the runtime remembers of containers that never started.
func (k *demoKubelet) Records(_ context.Context, uid, container string) ([]cri.Container, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if uid != podUID || container != containerName {
		return nil, nil
	}
	return slices.Clone(k.records), nil
}

// Remove forgets one of them. The kubelet counts its back-off from the newest.
func (k *demoKubelet) Remove(_ context.Context, record cri.Container) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = slices.DeleteFunc(k.records, func(r cri.Container) bool { return r.ID == record.ID })
	if len(k.records) == 0 {
		k.backoff = time.Time{}
	}
	return nil
}

func (k *demoKubelet) setState(state corev1.ContainerState, running bool) {
	status := &k.pod.Status.ContainerStatuses[0]
	status.State, status.Ready, status.Started = state, running, &running
}
