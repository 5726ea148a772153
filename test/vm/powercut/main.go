// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command powercut repairs a stale subPath in a virtual machine that loses its power meanwhile, and goes on at the next
// boot: with the pipeline, the journal and the processors of the agent. A file stands in for the API server, which is
// on a machine that keeps its power. It is for tests alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

const (
	nodeName = "vm"
	podName  = "core2"
	podUID   = "29da79e5-386c-4e0d-82c1-215f93ff955d"
)

// Ended is what a run has come to.
type Ended struct {
	Status v1.DiagnosisStatus
	// Before and After are the mounts at the subPath's place when the run began and when it ended; empty: none.
	Before, After string
	// Names are those of the subPath's file that the mount at its place, if there is one, still has: 0 is a stale one.
	Names uint32
}

func main() {
	subprocess.Main(registry.Jobs()...)
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "powercut: usage: powercut break|resume|rebind DIRECTORY")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "powercut:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, verb, dir string) error {
	s := scene{dir: dir}
	var err error
	switch verb {
	case "break":
		err = s.breakIt()
	case "rebind":
		err = s.bind("x")
	}
	if err != nil {
		return fmt.Errorf("set scene: %w", err)
	}
	ended := Ended{Before: s.top()}
	if ended.Status, err = s.diagnose(ctx); err != nil {
		return err
	}
	ended.After = s.top()
	if state, err := mount.Inspect(s.point()); err == nil {
		ended.Names = state.Nlink
	}
	return json.NewEncoder(os.Stdout).Encode(ended)
}

// scene is a kubelet's root with one pod.
type scene struct{ dir string }

func (s scene) root() string { return filepath.Join(s.dir, "kubelet") }

func (s scene) volume() string {
	return filepath.Join(s.root(), "pods", podUID, "volumes/kubernetes.io~configmap/conf")
}

func (s scene) point() string {
	return filepath.Join(s.root(), "pods", podUID, "volume-subpaths/conf/debian/0")
}

// top is the mount at the subPath's place.
func (s scene) top() string {
	state, err := mount.Inspect(s.point())
	if err != nil {
		return ""
	}
	return state.String()
}

// breakIt binds a file, and deletes it.
func (s scene) breakIt() error {
	if err := os.MkdirAll(filepath.Join(s.dir, "data"), 0o700); err != nil {
		return err
	}
	return errors.Join(s.bind("..1"), os.Remove(filepath.Join(s.volume(), "..1")))
}

// bind binds a file of the volume where the kubelet binds the subPath.
func (s scene) bind(name string) error {
	for _, file := range []string{filepath.Join(s.volume(), name), filepath.Join(s.volume(), "x"), s.point()} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			return err
		}
	}
	return mount.Bind(filepath.Join(s.volume(), name), s.point())
}

// diagnose runs the Diagnosis, or resumes it.
func (s scene) diagnose(ctx context.Context) (v1.DiagnosisStatus, error) {
	server := &server{file: filepath.Join(s.dir, "diagnosis.json")}
	if err := server.Load(strings.NewReader(operations.SubPathRemount)); err != nil {
		return v1.DiagnosisStatus{}, err
	}
	d, err := server.diagnosis(ctx)
	if err != nil {
		return v1.DiagnosisStatus{}, err
	}
	node, err := kubelet.Local(s.root())
	if err != nil {
		return v1.DiagnosisStatus{}, err
	}
	registry, err := registry.New(registry.Deps{Pods: pods{}, Kubelet: node})
	if err != nil {
		return v1.DiagnosisStatus{}, err
	}
	boot, err := sys.BootID()
	if err != nil {
		return v1.DiagnosisStatus{}, err
	}
	e, err := pipeline.New(pipeline.Options{Node: nodeName, Boot: boot, DataRoot: filepath.Join(s.dir, "data"), Registry: registry, Store: server})
	if err != nil {
		return v1.DiagnosisStatus{}, err
	}
	defer func() { _ = e.Close() }()
	if d, err = e.Run(ctx, d); err != nil {
		return v1.DiagnosisStatus{}, err
	}
	return d.Status, nil
}

// server keeps the Diagnosis in a file, which is there whatever happens to the machine.
type server struct {
	store.Memory
	file string
}

// diagnosis reads it, or makes it.
func (s *server) diagnosis(ctx context.Context) (*v1.Diagnosis, error) {
	d := &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "powercut", UID: "powercut"},
		Spec: v1.DiagnosisSpec{
			OperationSet: "subpath-remount-op-set", NodeName: nodeName,
			PodReference: &v1.PodReference{Namespace: metav1.NamespaceDefault, Name: podName},
		},
	}
	text, err := os.ReadFile(s.file)
	if errors.Is(err, os.ErrNotExist) {
		d.CreationTimestamp = metav1.Now()
		return d, s.Save(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	return d, json.Unmarshal(text, d)
}

// Save replaces the file, and returns when it is on the disk.
func (s *server) Save(_ context.Context, d *v1.Diagnosis) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	f, err := os.Create(s.file + ".part")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close(), os.Rename(f.Name(), s.file)); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.file))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// pods has the one pod, whose container runs.
type pods struct{}

func (pods) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if namespace != metav1.NamespaceDefault || name != podName {
		return nil, fmt.Errorf("get pod %q: %w", namespace+"/"+name, kubelet.ErrPodNotFound)
	}
	running := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: podUID},
		Spec: corev1.PodSpec{
			NodeName: nodeName,
			Containers: []corev1.Container{{
				Name: "debian", Image: "debian:12",
				VolumeMounts: []corev1.VolumeMount{{Name: "conf", MountPath: "/etc/x", SubPath: "x"}},
			}},
			Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
			}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "debian", Ready: true, Started: &running, Image: "debian:12",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}},
	}, nil
}
