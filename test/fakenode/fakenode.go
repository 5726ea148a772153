// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package fakenode sets up kubediag for tests with real parts but no kubelet: an API server, the manager and the agent as
// processes of their own, and a kubelet root with one pod in it, and more if asked for, whose containers run as far as
// any component can see. Tests break the pods' subPaths with real mounts. The test's process stands in for the kubelet:
// it must not have package kubelet in it, which holds a text by which one knows a kubelet that repairs its binds by
// itself. It needs root, and is torn down with the test.
package fakenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/program"
)

func init() { log.SetLogger(logr.Discard()) } // clients have nothing to say that a test does not

// NodeName is the name of the one node.
const NodeName = "stage-node"

// Node is an API server, and a node without a kubelet.
type Node struct {
	client.WithWatch
	// Pod is the one pod.
	Pod *corev1.Pod

	// Config is for a client that may do everything. Copy it before changing it.
	Config *rest.Config

	root, data, kubeconfig string
	programs               map[string]string
	runtime                *fakeRuntime // nil until a pod needs one
}

// New makes a node with everything but the programs.
func New(t testing.TB) *Node {
	t.Helper()
	env := apitest.Start(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Client.Scheme()})
	must(t, err)
	s := &Node{WithWatch: c, Config: env.Config, root: t.TempDir(), data: t.TempDir(), programs: map[string]string{}}
	must(t, mount.Tmpfs(s.root, 64<<20))
	t.Cleanup(func() { _ = exec.Command("umount", "-R", "-l", s.root).Run() })
	must(t, mount.SetPropagation(s.root, mount.Private, true))
	s.kubeconfig = apitest.Kubeconfig(t, env.Config)
	s.Apply(t, operations.SubPathRemount)
	t.Cleanup(func() { s.clear(t) })
	s.makePod(t)
	return s
}

// Apply creates Operations and OperationSets of a manifest, where they are not there yet.
func (s *Node) Apply(t testing.TB, manifest string) {
	t.Helper()
	for _, object := range apitest.Objects(t, manifest) {
		must(t, client.IgnoreAlreadyExists(s.Create(t.Context(), object)))
	}
}

// clear leaves the API server as the next node needs it.
func (s *Node) clear(t testing.TB) {
	ctx := context.Background() // that of the test is done
	if err := errors.Join(
		s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("default"), client.GracePeriodSeconds(0)),
		s.DeleteAllOf(ctx, &v1.Diagnosis{}, client.InNamespace("default")),
	); err != nil {
		t.Error(err)
	}
}

// Build builds a program of cmd with build tags.
func (s *Node) Build(t testing.TB, name, tags string) {
	t.Helper()
	s.programs[name] = program.Build(t, "cmd/"+name, "-trimpath", "-tags=grpcnotrace,"+tags)
}

// Program is the path of a program that was built.
func (s *Node) Program(name string) string { return s.programs[name] }

// Kubeconfig is a file for a client that may do everything.
func (s *Node) Kubeconfig() string { return s.kubeconfig }

// Launch starts a program that was built, as the last arguments of the command wrap where there is one. It runs until
// it is ended with program.End, or else to the end of the test.
func (s *Node) Launch(t testing.TB, name string, wrap ...string) *exec.Cmd {
	t.Helper()
	return s.launch(t, name, wrap, nil)
}

// LaunchWith is Launch with more flags.
func (s *Node) LaunchWith(t testing.TB, name string, flags ...string) *exec.Cmd {
	t.Helper()
	return s.launch(t, name, nil, flags)
}

// launch starts a program with flags in addition to those that every test needs. If a flag is given twice, the last one
// counts.
func (s *Node) launch(t testing.TB, name string, wrap, flags []string) *exec.Cmd {
	t.Helper()
	args := slices.Concat(wrap, []string{s.programs[name], "--namespace=default", "--metrics-bind-address=0", "--health-probe-bind-address=0"})
	switch name {
	case "manager":
		args = append(args, "--leader-elect=false")
	case "agent":
		args = append(args, "--node-name="+NodeName, "--data-root="+s.data, "--kubelet-root="+s.root, fmt.Sprint("--kubelet-pid=", os.Getpid()))
	}
	args = append(args, flags...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	program.Start(t, cmd)
	return cmd
}

// AwaitSet waits until the OperationSet of a name can be used.
func (s *Node) AwaitSet(t testing.TB, name string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		set := &v1.OperationSet{}
		err := s.Get(t.Context(), client.ObjectKey{Name: name}, set)
		if err == nil && !set.Status.Ready {
			err = fmt.Errorf("it is not ready: %+v", set.Status)
		}
		return err
	})
}

func (s *Node) makePod(t testing.TB) {
	must(t, client.IgnoreAlreadyExists(s.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}})))
	s.Pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "core2"},
		Spec: corev1.PodSpec{
			NodeName: NodeName,
			Containers: []corev1.Container{{
				Name: "debian", Image: "debian:12",
				VolumeMounts: []corev1.VolumeMount{{Name: "conf", MountPath: "/etc/x", SubPath: "x"}},
			}},
			Volumes: []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
			}}}},
		},
	}
	s.play(t, s.Pod)
}

// play creates a pod, and says that its containers run.
func (s *Node) play(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	must(t, s.Create(t.Context(), pod))
	running := true
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Started: &running, Image: c.Image,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	must(t, s.Status().Update(t.Context(), pod))
}

// Point is where the kubelet binds the pod's subPath.
func (s *Node) Point() string {
	return filepath.Join(s.root, "pods", string(s.Pod.UID), "volume-subpaths/conf/debian/0")
}

// Break binds a file where the kubelet binds the subPath, over the bind there, and deletes the file. version distinguishes
// one file from another.
func (s *Node) Break(t testing.TB, version int) mount.State {
	t.Helper()
	name := fmt.Sprint("..", version)
	state := s.bind(t, name)
	must(t, os.Remove(filepath.Join(s.volume(), name)))
	return state
}

// Bind binds there the file that the subPath names, over the bind there: a healthy mount.
func (s *Node) Bind(t testing.TB) mount.State {
	t.Helper()
	return s.bind(t, "x")
}

func (s *Node) volume() string {
	return filepath.Join(s.root, "pods", string(s.Pod.UID), "volumes/kubernetes.io~configmap/conf")
}

func (s *Node) bind(t testing.TB, name string) mount.State {
	t.Helper()
	must(t, os.MkdirAll(s.volume(), 0o755))
	must(t, os.MkdirAll(filepath.Dir(s.Point()), 0o755))
	for _, file := range []string{filepath.Join(s.volume(), name), filepath.Join(s.volume(), "x"), s.Point()} {
		if _, err := os.Lstat(file); err != nil {
			must(t, os.WriteFile(file, nil, 0o644))
		}
	}
	must(t, mount.Bind(filepath.Join(s.volume(), name), s.Point()))
	state, err := mount.Inspect(s.Point())
	must(t, err)
	return state
}

// Diagnosis makes a Diagnosis of the pod, not yet created.
func (s *Node) Diagnosis(name string) *v1.Diagnosis {
	return &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.DiagnosisSpec{
			OperationSet: "subpath-remount-op-set", NodeName: NodeName,
			PodReference: &v1.PodReference{Namespace: "default", Name: s.Pod.Name},
		},
	}
}

// Run calls begun, creates a Diagnosis of the pod, and waits until it has ended, a minute at most.
func (s *Node) Run(t testing.TB, name string, begun func()) *v1.Diagnosis {
	t.Helper()
	return s.RunThat(t, s.Diagnosis(name), begun)
}

// RunThat is Run with a Diagnosis that is not yet created.
func (s *Node) RunThat(t testing.TB, d *v1.Diagnosis, begun func()) *v1.Diagnosis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var list v1.DiagnosisList
	must(t, s.List(ctx, &list, client.InNamespace("default"), client.Limit(1)))
	watch, err := s.Watch(ctx, &v1.DiagnosisList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": d.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	must(t, err)
	defer watch.Stop()
	begun()
	must(t, s.Create(ctx, d))
	for event := range watch.ResultChan() {
		seen, ok := event.Object.(*v1.Diagnosis)
		if !ok {
			t.Fatalf("watch says %+v", event.Object)
		}
		if seen.Ended() {
			return seen
		}
	}
	t.Fatalf("Diagnosis %s did not end", d.Name)
	return nil
}

var must = kerneltest.Must
