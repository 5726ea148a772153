// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestSideBySide runs both kubelets at once, each with pods that work, and shows that the end of one does not touch
// the other and that nothing of either is left. Each has its root behind a link, on a file system of its own: the older
// one's is the cluster's, the newer one's the caller's.
func TestSideBySide(t *testing.T) {
	root, link := ownFileSystem(t)
	program := buildWhoami(t)
	var nodes [2]*node
	var wg sync.WaitGroup
	for i, o := range []Options{{Kubelet: Kubernetes118, KubeletDisk: true}, {Kubelet: Kubernetes137, KubeletRoot: link}} {
		wg.Go(func() { nodes[i] = startWorkingNode(t, o, program) })
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	old, current := nodes[0], nodes[1]
	if old.c.net == current.c.net {
		t.Errorf("both clusters have network %v", old.c.net)
	}
	old.stop(t)
	before := current.pod(t, "sleeper").Status.ContainerStatuses[0]
	current.removeContainer(t, "sleeper")
	current.waitAnother(t, "sleeper", before.ContainerID)
	current.restartKubelet(t, "sleeper")
	current.stop(t)
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil || len(mounts) != 1 {
		t.Errorf("mounts at the caller's kubelet root = %v, %v; want the caller's own", mounts, err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("caller's kubelet root holds %v, %v; want nothing", entries, err)
	}
}

// TestSweepTakesTheDisks shows that disks go away even where owner and reaper were killed.
func TestSweepTakesTheDisks(t *testing.T) {
	o := Options{Kubelet: Kubernetes118, KubeletDisk: true}
	must(t, o.complete())
	c, err := newCluster(o)
	must(t, err)
	mounted := c.mountDisk(t.Context())
	device, image, added := c.AddDisk(t.Context(), 1<<20)
	tr := trace{dir: c.Dir()}
	found := tr.find(t)
	must(t, c.reaper.cmd.Process.Kill())
	if err := c.Stop(); err == nil {
		t.Error("a reaper that was killed reports success")
	}
	if mounted != nil || added != nil || len(found["mount"]) != 1 || len(found["loop device"]) != 2 {
		t.Errorf("mounted: %v, added: %v, on the machine is %v", mounted, added, found)
	}
	if got := loopsOver(image); len(got) != 1 || filepath.Join("/dev", got[0]) != device {
		t.Errorf("over %q is %q, not %q", image, got, device)
	}
	if err := Sweep(); err != nil {
		t.Error(err)
	}
	tr.waitNothingLeft(t)
}

// TestStartFails shows that a cluster whose kubelet does not start says why and goes away.
func TestStartFails(t *testing.T) {
	o := Options{Name: t.Name(), Kubelet: Kubernetes137, KubeletArgs: []string{"--no-such-flag"}}
	c, err := Start(t.Context(), o)
	if err == nil {
		t.Fatal(errors.Join(errors.New("cluster started"), c.Stop()))
	}
	if !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("start: %v, want the kubelet's reason", err)
	}
	if Exists(t.Name()) {
		t.Errorf("cluster %q is still there", t.Name())
	}
}

// node is a cluster under test.
type node struct {
	c      *Cluster
	client kubernetes.Interface
}

// startWorkingNode starts a cluster and shows that a pod of it gets ready, and that one can speak to the API server.
// It marks the test as failed, but does not end it: it runs beside another one.
func startWorkingNode(t *testing.T, o Options, program string) *node {
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Errorf("kubelet %s: %v", o.Kubelet, err)
		return nil
	}
	t.Cleanup(func() { _ = c.Stop() }) // tested where it matters
	n := &node{c, kubernetes.NewForConfigOrDie(c.RESTConfig())}
	if err := n.use(t.Context(), o, program); err != nil {
		var dump bytes.Buffer
		c.Dump(context.WithoutCancel(t.Context()), &dump)
		t.Errorf("kubelet %s: %v\n%s", o.Kubelet, err, &dump)
	}
	return n
}

func (n *node) use(ctx context.Context, o Options, program string) error {
	info, err := n.client.CoreV1().Nodes().Get(ctx, n.c.NodeName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := info.Status.NodeInfo.KubeletVersion; got != "v"+o.Kubelet {
		return fmt.Errorf("kubelet version = %q, want v%s", got, o.Kubelet)
	}
	const image = "kubediag.org/test/whoami:1"
	if err := n.c.LoadBinaryImage(ctx, image, program); err != nil {
		return err
	}
	if err := n.create(ctx, pod("sleeper", BusyboxImage, "sh", "-c", "sleep 1000 & wait")); err != nil {
		return err
	}
	asks := pod("whoami", image)
	user := int64(65532)
	asks.Spec.RestartPolicy = corev1.RestartPolicyNever
	asks.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, FSGroup: &user}
	if err := n.create(ctx, asks); err != nil {
		return err
	}
	if err := n.wait(ctx, "sleeper", isReady); err != nil {
		return err
	}
	done := func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}
	if err := n.wait(ctx, "whoami", done); err != nil {
		return err
	}
	logs, err := n.client.CoreV1().Pods("default").GetLogs("whoami", &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		return err
	}
	defer logs.Close()
	text, err := io.ReadAll(logs)
	if got := strings.TrimSpace(string(text)); got != "system:serviceaccount:default:default" {
		return fmt.Errorf("pod is %q to the API server: %w", got, err)
	}
	return nil
}

// pod is a pod of one container.
func pod(name, image string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: image, ImagePullPolicy: corev1.PullNever, Command: command,
		}}},
	}
}

func isReady(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (n *node) create(ctx context.Context, p *corev1.Pod) error {
	_, err := n.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	return err
}

// wait returns when the pod is as wanted, or after two minutes.
func (n *node) wait(ctx context.Context, name string, wanted func(*corev1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return n.c.wait(ctx, "pod "+name, func(ctx context.Context) error {
		p, err := n.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil && !wanted(p) {
			err = fmt.Errorf("pod is in phase %s", p.Status.Phase)
		}
		return err
	})
}

func (n *node) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := n.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return p
}

func (n *node) removeContainer(t *testing.T, name string) {
	t.Helper()
	must(t, n.c.RemoveContainer(t.Context(), string(n.pod(t, name).UID), "main"))
}

// restartKubelet shows that a pod's container outlives its kubelet. Once the container was removed, nothing of the pod
// is left in the runtime, and nothing starts it until the kubelet is back.
func (n *node) restartKubelet(t *testing.T, name string) {
	t.Helper()
	ctx, pid, p := t.Context(), n.c.KubeletPID(), n.pod(t, name)
	must(t, n.c.StopKubelet(ctx))
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) || n.c.KubeletPID() != 0 {
		t.Errorf("the kubelet that was stopped: %v, and its ID is %d", err, n.c.KubeletPID())
	}
	started, err := n.c.Started(ctx, string(p.UID), "main")
	if err != nil || started.IsZero() {
		t.Errorf("the container was started at %s, %v", started, err)
	}
	must(t, n.c.RemovePod(ctx, string(p.UID)))
	if started, err = n.c.Started(ctx, string(p.UID), "main"); err != nil || !started.IsZero() {
		t.Errorf("the container that was removed was started at %s, %v", started, err)
	}
	must(t, n.c.StartKubelet(ctx))
	n.waitAnother(t, name, p.Status.ContainerStatuses[0].ContainerID)
}

// waitAnother returns when the pod's container runs and is not the one named.
func (n *node) waitAnother(t *testing.T, name, containerID string) {
	t.Helper()
	err := n.wait(t.Context(), name, func(p *corev1.Pod) bool {
		status := p.Status.ContainerStatuses[0]
		return status.State.Running != nil && status.ContainerID != containerID
	})
	must(t, err)
}

// stop ends the cluster and shows that everything that could be seen of it before is gone.
func (n *node) stop(t *testing.T) {
	t.Helper()
	tr := traceOf(t, n.c, string(n.pod(t, "sleeper").UID), string(n.pod(t, "whoami").UID))
	kinds := []string{"process", "mount", "device", "socket", "cgroup", "log link", "CNI result", "folder"}
	if n.c.o.Kubelet == Kubernetes118 {
		kinds = append(kinds, "log", "loop device")
	}
	found := tr.find(t)
	for _, kind := range kinds {
		if len(found[kind]) == 0 {
			t.Errorf("kubelet %s: found no %s of a running cluster", n.c.o.Kubelet, kind)
		}
	}
	if err := n.c.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := tr.find(t); len(left) > 0 {
		t.Errorf("kubelet %s: left behind: %v", n.c.o.Kubelet, left)
	}
}

// ownFileSystem mounts an empty file system and gives where it is and a symbolic link to it.
func ownFileSystem(t *testing.T) (root, link string) {
	t.Helper()
	root, link = filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "link")
	must(t, os.Mkdir(root, 0o755))
	must(t, unix.Mount("tmpfs", root, "tmpfs", 0, ""))
	t.Cleanup(func() {
		if err := unmount(root); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Symlink(root, link))
	return root, link
}

func buildWhoami(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "whoami")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/whoami")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build whoami: %v\n%s", err, out)
	}
	return program
}
