// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package install starts a real cluster with one node for a test and installs kubediag on it the way the README says,
// with images of the programs as they are in the tree. It needs root; everything goes away with the test.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/lock"
)

const (
	// Namespace is where config/default installs.
	Namespace = "kubediag"
	// Busybox is an image that the node has.
	Busybox = "kubediag.org/test/busybox:1"

	version = "v0.1.0" // of the images in config/default
	// dataRoot is the agent's directory in config/agent. Each cluster of this machine has another one.
	dataRoot = "          path: /var/lib/kubediag\n"
)

func init() { log.SetLogger(logr.Discard()) } // clients have nothing to say that a test does not

// Env is a cluster with one node and kubediag installed on it.
type Env struct {
	*cluster.Cluster
	client.Client

	programs string // the directory of the programs
	root     string // of the module
	kubectl  string
	tags     string    // of the programs
	hastened time.Time // when the kubelet was made to look at pods last
}

// Start starts a cluster and installs kubediag with the manifests that users apply. Its programs are built as those of a
// release, but for the build tags.
func Start(t testing.TB, o cluster.Options, tags ...string) *Env {
	t.Helper()
	e := withTags(t, tags)
	packed := e.pack(t)
	c, err := cluster.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	e.Cluster = c
	scheme := kruntime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1.AddToScheme(scheme))
	e.Client, err = client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	must(t, err)
	e.kubectl, err = cluster.Kubectl(t.Context())
	must(t, err)
	e.root = filepath.Dir(strings.TrimSpace(run(t, exec.CommandContext(t.Context(), "go", "env", "GOMOD"))))
	t.Cleanup(func() {
		if t.Failed() {
			e.report(t)
		}
	})
	must(t, packed())
	e.install(t)
	return e
}

// withTags is an Env of programs with build tags, without a cluster.
func withTags(t testing.TB, tags []string) *Env {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	e := &Env{tags: strings.Join(append(tags, "grpcnotrace"), ",")}
	e.programs = filepath.Join(cache, "kubediag", "programs", e.tags)
	return e
}

// Release builds the programs and packs the images that users get, for a test that installs them by hand. It returns the files of
// the images, and the plugin of kubectl.
func Release(t testing.TB) (images []string, plugin string) {
	t.Helper()
	e := withTags(t, nil)
	must(t, e.pack(t)())
	return e.images(), e.program("kubectl-kubediag")
}

// images are the files of the images.
func (e *Env) images() []string {
	var files []string
	for _, name := range []string{"manager", "agent", "cli"} {
		files = append(files, filepath.Join(e.programs, "kubediag-"+name+"-"+runtime.GOARCH+".tar"))
	}
	return files
}

// packed has the build tags whose programs this process has packed.
var packed sync.Map

// pack builds the programs and packs them into the images that users get, once for the tests of a process, while the caller
// goes on. The function that it gives waits for the end of that.
func (e *Env) pack(t testing.TB) (wait func() error) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = e.inTurn(t.Context(), func() error {
			if _, done := packed.Load(e.tags); done {
				return nil
			}
			err := e.packAll(t.Context())
			if err == nil {
				packed.Store(e.tags, true)
			}
			return err
		})
	}()
	t.Cleanup(func() { <-done })
	return func() error {
		<-done
		return err
	}
}

func (e *Env) packAll(ctx context.Context) error {
	for _, name := range []string{"manager", "agent", "kubediag", "kubectl-kubediag"} {
		if err := e.build(ctx, name); err != nil {
			return err
		}
	}
	return command(exec.CommandContext(ctx, "go", "run", "kubediag.org/kubediag/hack/release", "images", "-version", version,
		"-arch", runtime.GOARCH, "-bin", e.programs, "-dist", e.programs))
}

// inTurn writes programs while no other test does.
func (e *Env) inTurn(ctx context.Context, write func() error) error {
	if err := os.MkdirAll(e.programs, 0o755); err != nil {
		return err
	}
	turn, err := lock.Take(ctx, filepath.Join(e.programs, "lock"))
	if err != nil {
		return err
	}
	return errors.Join(write(), turn.Close())
}

// install loads the images and applies config/default, which names them.
func (e *Env) install(t testing.TB) {
	t.Helper()
	for _, file := range e.images() {
		must(t, e.LoadImage(t.Context(), file))
	}
	e.ApplyDir(t, "config/default")
	e.awaitReady(t, "manager")
	e.awaitReady(t, "agent")
	e.Wait(t, "the manager to install the OperationSets", func(ctx context.Context) bool { // a file that is applied meanwhile is refused
		var sets v1.OperationSetList
		err := e.List(ctx, &sets)
		return err == nil && !slices.ContainsFunc(operations.Sets(), func(name string) bool {
			return !slices.ContainsFunc(sets.Items, func(s v1.OperationSet) bool { return s.Name == name })
		})
	})
}

// ApplyDir applies a directory of the module, with a directory of this cluster for the agent.
func (e *Env) ApplyDir(t testing.TB, dir string) {
	t.Helper()
	manifest := e.Kubectl(t, "", "kustomize", filepath.Join(e.root, dir))
	e.Kubectl(t, WithDataRoot(t, manifest, filepath.Join(e.Dir(), "agent")), "apply", "-f", "-")
}

// WithDataRoot gives the agent of a manifest another directory on the node.
func WithDataRoot(t testing.TB, manifest, dir string) string {
	t.Helper()
	if strings.Count(manifest, dataRoot) != 1 {
		t.Fatalf("the manifest does not have the line %q once", dataRoot)
	}
	return strings.Replace(manifest, dataRoot, fmt.Sprintf("          path: %s\n", dir), 1)
}

// Build builds a program of cmd and gives its path, which is the same for all tests: go build does not link a program again
// that is up to date.
func (e *Env) Build(t testing.TB, name string) string {
	t.Helper()
	must(t, e.inTurn(t.Context(), func() error { return e.build(t.Context(), name) }))
	return e.program(name)
}

func (e *Env) program(name string) string {
	return filepath.Join(e.programs, "linux_"+runtime.GOARCH, name)
}

func (e *Env) build(ctx context.Context, name string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags="+e.tags, "-ldflags=-s -w",
		"-o", e.program(name), "kubediag.org/kubediag/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	return command(build)
}

// SetSentinel gives the agent another mode of the sentinel, and waits until it runs with that. More settings are those of
// environment variables, "NAME=value".
func (e *Env) SetSentinel(t testing.TB, mode string, more ...string) {
	t.Helper()
	args := []string{"set", "env", "-n", Namespace, "ds/kubediag-agent", "KUBEDIAG_SENTINEL_MODE=" + mode}
	e.Kubectl(t, "", append(args, more...)...)
	e.awaitReplaced(t)
}

// awaitReplaced waits until the agent is that of the DaemonSet as it is now.
func (e *Env) awaitReplaced(t testing.TB) {
	t.Helper()
	e.Wait(t, "the agent to be replaced", func(ctx context.Context) bool {
		e.hasten(ctx, Namespace)
		var d appsv1.DaemonSet
		err := e.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: "kubediag-agent"}, &d)
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedNumberScheduled == d.Status.DesiredNumberScheduled
	})
	e.awaitReady(t, "agent")
}

// awaitReady waits until the one pod of a component says that it is ready. The kubelet asks it every five seconds only.
func (e *Env) awaitReady(t testing.TB, component string) {
	t.Helper()
	e.Wait(t, "the "+component+" to be ready", func(ctx context.Context) bool {
		var pods corev1.PodList
		err := e.List(ctx, &pods, client.InNamespace(Namespace), client.MatchingLabels{"app.kubernetes.io/component": component})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil || pods.Items[0].Status.PodIP == "" {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pods.Items[0].Status.PodIP+":8081/readyz", nil)
		must(t, err)
		response, err := new(http.Transport).RoundTrip(request) // past any proxy
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// DeletePods deletes pods and waits until the API server has none of them.
func (e *Env) DeletePods(t testing.TB, namespace string, names ...string) {
	t.Helper()
	e.Kubectl(t, "", append([]string{"delete", "pod", "--wait=false", "-n", namespace}, names...)...)
	e.Wait(t, fmt.Sprintf("pods %q to go", names), func(ctx context.Context) bool {
		e.hasten(ctx, namespace)
		var pods corev1.PodList
		return e.List(ctx, &pods, client.InNamespace(namespace)) == nil && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return slices.Contains(names, p.Name)
		})
	})
}

// hasten has the kubelet look at the pods that are being deleted, as it does when a pod changes: one of 1.18 says up to ten
// seconds late that nothing is left of them. hasten does so twice a second at most, as that kubelet may send five
// requests.
func (e *Env) hasten(ctx context.Context, namespace string) {
	if time.Since(e.hastened) < 500*time.Millisecond {
		return
	}
	e.hastened = time.Now()
	var pods corev1.PodList
	if err := e.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil {
			_ = e.Nudge(ctx, &pods.Items[i]) // it may be gone
		}
	}
}

// Nudge has the kubelet look at a pod now, as it does whenever the pod changes.
func (e *Env) Nudge(ctx context.Context, p *corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test.kubediag.org/nudge":%q}}}`, time.Now())
	return e.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// kubectlCommand is one of kubectl for this cluster.
func (e *Env) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.Kubeconfig())
	return cmd
}

// Kubectl runs the command that users run, with input on its standard input, and gives its output.
func (e *Env) Kubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	cmd := e.kubectlCommand(t.Context(), args...)
	cmd.Stdin = bytes.NewBufferString(input)
	return run(t, cmd)
}

// KubectlStatus is Kubectl for a command that may end with an error, and returns its exit status as well.
func (e *Env) KubectlStatus(t testing.TB, args ...string) (out string, status int) {
	t.Helper()
	cmd := e.kubectlCommand(t.Context(), args...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// Wait polls until done says so, five minutes at most.
func (e *Env) Wait(t testing.TB, what string, done func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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

// report prints the facts that a person would look at first.
func (e *Env) report(t testing.TB) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods,diag,opset,op", "-A", "-o", "wide"},
		{"get", "diag", "-A", "-o", "yaml"},
		{"get", "mountfaults", "-A", "-o", "wide"},
		{"get", "events", "-A"},
		{"logs", "-n", Namespace, "ds/kubediag-agent", "--tail=100"},
		{"logs", "-n", Namespace, "deploy/kubediag-manager", "--tail=50"},
	} {
		out, _ := e.kubectlCommand(context.Background(), args...).CombinedOutput() // that of the test is done
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

// run runs a command to its end and returns its output.
func run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// command runs a command to its end.
func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

var must = kerneltest.Must
