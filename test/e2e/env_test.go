// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/test/cluster"
)

const (
	namespace = "kubediag" // where config/default installs
	version   = "v0.1.0"   // of the images in it
	dataRoot  = "/var/lib/kubediag"
	busybox   = "kubediag.org/test/busybox:1"
)

func init() { log.SetLogger(logr.Discard()) } // clients have nothing to say that a test does not

// env is a cluster with one node and kubediag installed on it.
type env struct {
	*cluster.Cluster
	client.Client
	set *kubernetes.Clientset
	// bin holds the programs, kubectlPath is one of them.
	bin, kubectlPath string
}

// start brings up a cluster and installs kubediag with the manifests that users apply.
func start(t *testing.T, o cluster.Options) *env {
	t.Helper()
	keepDataRoot(t)
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := kruntime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1.AddToScheme(scheme))
	cl, err := client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	must(t, err)
	set, err := kubernetes.NewForConfig(c.RESTConfig())
	must(t, err)
	kubectl, err := cluster.Kubectl(t.Context())
	must(t, err)
	e := &env{Cluster: c, Client: cl, set: set, bin: t.TempDir(), kubectlPath: kubectl}
	t.Cleanup(func() {
		if t.Failed() {
			e.report(t)
		}
	})
	e.install(t)
	return e
}

// keepDataRoot takes away the agent's directory, which is one of this machine, once the cluster is gone, unless it was
// there before.
func keepDataRoot(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(dataRoot); err == nil {
		return // somebody else's
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dataRoot); err != nil {
			t.Error(err)
		}
	})
}

// install packs both programs into the images that users get, loads them, and applies config/default, which names them.
func (e *env) install(t *testing.T) {
	t.Helper()
	e.build(t, "manager")
	e.build(t, "agent")
	run(t, exec.CommandContext(t.Context(), "go", "run", "kubediag.org/kubediag/hack/image", "-version", version,
		"-arch", runtime.GOARCH, "-bin", e.bin, "-dist", e.bin))
	for _, name := range []string{"manager", "agent"} {
		must(t, e.LoadImage(t.Context(), filepath.Join(e.bin, "kubediag-"+name+"-"+runtime.GOARCH+".tar")))
	}
	e.kubectl(t, "", "apply", "-k", "../../config/default")
	e.wait(t, "the manager to be available", func(ctx context.Context) bool {
		var d appsv1.Deployment
		err := e.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "kubediag-manager"}, &d)
		return err == nil && d.Status.AvailableReplicas > 0
	})
	e.wait(t, "the agent to be ready", func(ctx context.Context) bool {
		var d appsv1.DaemonSet
		err := e.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "kubediag-agent"}, &d)
		return err == nil && d.Status.NumberReady > 0
	})
}

// build builds a program of cmd and gives its path.
func (e *env) build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(e.bin, "linux_"+runtime.GOARCH, name)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w",
		"-o", path, "kubediag.org/kubediag/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	run(t, build)
	return path
}

// kubectl runs the command that users run, with input on its standard input.
func (e *env) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.kubectlPath, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.Kubeconfig())
	cmd.Stdin = bytes.NewBufferString(input)
	return run(t, cmd)
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// wait polls until done says so, three minutes at most.
func (e *env) wait(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long for %s", what)
		case <-tick.C:
		}
	}
}

// mounts reads the mount table that the kubelet sees.
func (e *env) mounts(t *testing.T) []mountinfo.Mount {
	t.Helper()
	table, err := mountns.Table(e.KubeletPID())
	must(t, err)
	return table.Mounts()
}

// podOf finds the one pod with the label app=name.
func (e *env) podOf(ctx context.Context, name string) *corev1.Pod {
	var pods corev1.PodList
	err := e.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": name})
	if err != nil || len(pods.Items) != 1 {
		return nil
	}
	return &pods.Items[0]
}

// report prints what a person would look at first.
func (e *env) report(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods,diag,opset,op", "-A", "-o", "wide"},
		{"get", "diag", "-A", "-o", "yaml"},
		{"get", "events", "-A"},
		{"logs", "-n", namespace, "ds/kubediag-agent", "--tail=100"},
		{"logs", "-n", namespace, "deploy/kubediag-manager", "--tail=50"},
	} {
		cmd := exec.Command(e.kubectlPath, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+e.Kubeconfig())
		out, _ := cmd.CombinedOutput()
		t.Logf("kubectl %v\n%s", args, tail(string(out), 20000))
	}
	t.Logf("kubelet\n%s", tail(e.Logs("kubelet"), 4000))
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
