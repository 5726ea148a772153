// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"kubediag.org/kubediag/test/lock"
)

// ownerVar makes the test binary the owner of a cluster, for a test to kill.
const ownerVar = "KUBEDIAG_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVar) == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) //nolint:forbidigo // the owner is no test
	defer cancel()
	c, err := Start(ctx, Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.Dir())
	<-ctx.Done()
	if err := c.Stop(); err != nil {
		fmt.Println(err)
	}
}

func TestAPIServer(t *testing.T) {
	t.Parallel()
	c := startAPI(t)
	client := kubernetes.NewForConfigOrDie(c.RESTConfig())
	version, err := client.ServerVersion()
	if err != nil || version.GitVersion != "v"+Kubernetes137 {
		t.Fatalf("server version = %v, %v", version, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: BusyboxImage}}},
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("create pod without ServiceAccount: %v", err)
	}
	anonymous := c.RESTConfig()
	anonymous.BearerToken = ""
	_, err = kubernetes.NewForConfigOrDie(anonymous).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list pods as nobody = %v, want forbidden", err)
	}
	tr := traceOf(t, c)
	if found := tr.find(t); len(found["process"]) < 2 || len(found["folder"]) != 1 {
		t.Errorf("found of a running cluster: %v", found)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if left := tr.find(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestCRDServer118 shows that the old server stores custom objects and gives them their defaults, and that the new
// server knows nothing of them.
func TestCRDServer118(t *testing.T) {
	t.Parallel()
	c := startAPI(t)
	config, stop, err := StartCRDServer118(t.Context(), c)
	must(t, err)
	defer stop()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	client := dynamic.NewForConfigOrDie(config)
	if _, err := client.Resource(crds).Create(t.Context(), widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{},
	}}
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	var made *unstructured.Unstructured
	err = c.wait(t.Context(), "widgets", func(ctx context.Context) (err error) {
		made, err = client.Resource(gvr).Create(ctx, widget, metav1.CreateOptions{})
		return err
	})
	must(t, err)
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); size != 3 {
		t.Errorf("defaulted object = %v, want size 3", made.Object)
	}
	_, err = dynamic.NewForConfigOrDie(c.RESTConfig()).Resource(gvr).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("list widgets on the new server = %v, want not found", err)
	}
}

func widgets() *unstructured.Unstructured {
	spec := map[string]any{"type": "object", "properties": map[string]any{
		"size": map[string]any{"type": "integer", "default": int64(3)},
	}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com",
			"scope": "Cluster",
			"names": map[string]any{"plural": "widgets", "kind": "Widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": spec},
				}},
			}},
		},
	}}
}

func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	owner, tr := startOwner(t)
	must(t, owner.Process.Kill())
	tr.waitNothingLeft(t)
}

// TestSweep kills the owner and the reaper of a cluster, so that only Sweep can remove it, and shows that Sweep leaves
// another cluster alone.
func TestSweep(t *testing.T) {
	t.Parallel()
	living := startAPI(t)
	owner, tr := startOwner(t)
	tr.killReaper(t)
	must(t, owner.Process.Kill())
	_ = owner.Wait() // it was killed; the lock, which it had with the reaper, is free now
	must(t, Sweep())
	tr.waitNothingLeft(t)
	if _, err := kubernetes.NewForConfigOrDie(living.RESTConfig()).ServerVersion(); err != nil {
		t.Errorf("living cluster after Sweep: %v", err)
	}
}

// TestSweepOfWhatHasNoLock holds that a folder without a lock is removed if it is old, and otherwise left as it is: it is
// just being made, or another is removing it.
func TestSweepOfWhatHasNoLock(t *testing.T) {
	t.Parallel()
	for name, age := range map[string]time.Duration{"old": 2 * time.Minute, "new": 0} {
		dir, err := os.MkdirTemp(t.TempDir(), dirPrefix)
		must(t, err)
		made := time.Now().Add(-age)
		must(t, os.Chtimes(dir, made, made))
		if err := lock.SweepFolder(dir, tearDown); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		files, err := os.ReadDir(dir)
		if gone := errors.Is(err, fs.ErrNotExist); gone != (name == "old") || len(files) > 0 {
			t.Errorf("%s: %v, has %v", name, err, files)
		}
	}
}

func startAPI(t *testing.T) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), Options{})
	must(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// startOwner runs another program that owns a cluster, and returns when the cluster is up.
func startOwner(t *testing.T) (*exec.Cmd, trace) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerVar+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	dir, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return cmd, trace{dir: strings.TrimSpace(dir)}
}

// killReaper kills the process that looks after the cluster, and returns when it has ended: until then it has the lock.
func (tr trace) killReaper(t *testing.T) {
	t.Helper()
	for _, proc := range tr.processes() {
		if len(grep(proc+"/environ", reaperOf+"="+tr.dir)) == 0 {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(proc))
		must(t, err)
		fd, err := unix.PidfdOpen(pid, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
		ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ended, 10_000)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(ended, 10_000)
		}
		if n != 1 {
			t.Fatalf("the reaper that was killed has not ended in 10 s: %v", err)
		}
		return
	}
	t.Fatalf("no reaper of %q", tr.dir)
}
