// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/lock"
)

// Versions of Kubernetes that a cluster is made of. Only benchmarks and the tests before a release have one of 1.36 or 1.24.
const (
	Kubernetes137 = "1.37.2"
	Kubernetes136 = "1.36.3"
	Kubernetes124 = "1.24.17"
	Kubernetes118 = "1.18.19"
)

// Containerd2 is the version of a container runtime beside Debian's, which is older. It has a runc of its own.
const (
	Containerd2 = "2.4.2"
	runc        = "1.5.2"
)

// Versions of the program helm. Only the tests before a release have the oldest and the newest one.
const (
	Helm310 = "3.10.3"
	Helm322 = "3.22.0"
	Helm43  = "4.3.1"
)

// seaweedFS is the version of SeaweedFS, of which only the tests before a release have a client.
const seaweedFS = "4.53"

// component is a program and the folder of the module that pins everything it is built from.
type component struct {
	name    string
	version string
	module  string
	pkg     string
	patch   *patch // of what it is built from, or nil
}

// components lists the programs that can be built, the most useful first.
var components = []component{
	{"kube-apiserver", Kubernetes137, "kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-apiserver", nil},
	{"kubelet", Kubernetes137, "kubernetes-1.37", "k8s.io/kubernetes/cmd/kubelet", nil},
	{"kube-controller-manager", Kubernetes137, "kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-controller-manager", nil},
	{"kube-scheduler", Kubernetes137, "kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-scheduler", nil},
	{"kubectl", Kubernetes137, "kubernetes-1.37", "k8s.io/kubernetes/cmd/kubectl", nil},
	{"kubelet", Kubernetes118, "kubernetes-1.18", "k8s.io/kubernetes/cmd/kubelet", &keepsLogs},
	{"apiextensions-apiserver", Kubernetes118, "apiextensions-1.18", "k8s.io/apiextensions-apiserver", nil},
	{"helm", Helm322, "helm-3.22", "helm.sh/helm/v3/cmd/helm", nil},
}

// rare lists the programs that only a benchmark or the tests before a release need: BuildAll leaves them out. e2e.test is Kubernetes' own
// end-to-end tests, and agnhost the program that their pods run.
var rare = []component{
	{"kube-apiserver", Kubernetes136, "kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-apiserver", nil},
	{"kubelet", Kubernetes136, "kubernetes-1.36", "k8s.io/kubernetes/cmd/kubelet", nil},
	{"kube-controller-manager", Kubernetes136, "kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-controller-manager", nil},
	{"kube-scheduler", Kubernetes136, "kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-scheduler", nil},
	{"kube-apiserver", Kubernetes124, "kubernetes-1.24", "k8s.io/kubernetes/cmd/kube-apiserver", nil},
	{"kube-controller-manager", Kubernetes124, "kubernetes-1.24", "k8s.io/kubernetes/cmd/kube-controller-manager", nil},
	{"kube-scheduler", Kubernetes124, "kubernetes-1.24", "k8s.io/kubernetes/cmd/kube-scheduler", nil},
	{"containerd", Containerd2, "containerd-2.4", "github.com/containerd/containerd/v2/cmd/containerd", nil},
	{"containerd-shim-runc-v2", Containerd2, "containerd-2.4", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", nil},
	{"runc", runc, "runc-1.5", "github.com/opencontainers/runc", nil},
	{"helm", Helm310, "helm-3.10", "helm.sh/helm/v3/cmd/helm", nil},
	{"helm", Helm43, "helm-4.3", "helm.sh/helm/v4/cmd/helm", nil},
	{"weed", seaweedFS, "seaweedfs-4.53", "github.com/seaweedfs/seaweedfs/weed", nil},
	{"e2e.test", Kubernetes136, "conformance-1.36", "k8s.io/kubernetes/test/e2e", nil},
	{"agnhost", Kubernetes136, "conformance-1.36", "k8s.io/kubernetes/test/images/agnhost", nil},
}

// flags are the arguments of go build that decide about its output.
func (c component) flags() []string {
	const stamp = "-X k8s.io/component-base/version."
	parts := strings.SplitN(c.version, ".", 3)
	ld := []string{
		"-s -w", stamp + "gitVersion=v" + c.version, stamp + "gitMajor=" + parts[0], stamp + "gitMinor=" + parts[1],
		stamp + "gitTreeState=clean",
	}
	switch c.version {
	case runc:
		return []string{"-trimpath", "-tags=seccomp", "-ldflags", "-s -w -X main.version=" + c.version}
	case Containerd2:
		return []string{"-trimpath", "-tags=no_btrfs", "-ldflags", "-s -w -X github.com/containerd/containerd/v2/version.Version=v" + c.version}
	case Kubernetes124:
		const answered = "-X k8s.io/client-go/pkg/version." // the path /version has these
		ld = append(ld, answered+"gitVersion=v"+c.version, answered+"gitMajor="+parts[0], answered+"gitMinor="+parts[1])
	case Kubernetes118:
		ld = append(ld, "-checklinkname=0") // its libraries reach into the runtime in ways that Go forbids since 1.23
	}
	return []string{"-trimpath", "-ldflags", strings.Join(ld, " ")}
}

// BuildAll builds every program that a cluster or a test of make test can need and that is not in the cache yet, and installs the Debian
// packages. With an empty cache it takes about ten minutes on two cores; standard error shows its progress.
func BuildAll(ctx context.Context) error {
	if err := debian.Install(ctx, slices.Concat(nodePrograms, diskPrograms, []string{"etcd", exporter})...); err != nil {
		return err
	}
	for _, c := range components {
		if _, err := c.build(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl returns the path of kubectl 1.37, for tests that act as users. It is built if it is not there.
func Kubectl(ctx context.Context) (string, error) { return binary(ctx, "kubectl", Kubernetes137) }

// Helm returns the path of helm 3.22, for tests that act as users. It is built if it is not there.
func Helm(ctx context.Context) (string, error) { return HelmOf(ctx, Helm322) }

// HelmOf returns the path of helm of one of the versions above. It is built if it is not there.
func HelmOf(ctx context.Context, version string) (string, error) { return binary(ctx, "helm", version) }

// Weed returns the path of SeaweedFS' program, which is its servers and its client. It is built if it is not there.
func Weed(ctx context.Context) (string, error) { return binary(ctx, "weed", seaweedFS) }

// EndToEndTests returns the path of the end-to-end tests of Kubernetes 1.36. They are built if they are not there.
func EndToEndTests(ctx context.Context) (string, error) {
	return binary(ctx, "e2e.test", Kubernetes136)
}

// ControllerManager returns the path of kube-controller-manager 1.37, for tests that need one of its controllers. It is built if it
// is not there.
func ControllerManager(ctx context.Context) (string, error) {
	return binary(ctx, "kube-controller-manager", Kubernetes137)
}

// Kubelet returns the path of the kubelet 1.37, for a node that is no Cluster's. It is built if it is not there.
func Kubelet(ctx context.Context) (string, error) { return binary(ctx, "kubelet", Kubernetes137) }

// binary returns the path of a program in the cache of this user and builds it if it is not there.
func binary(ctx context.Context, name, version string) (string, error) {
	all := slices.Concat(components, rare)
	i := slices.IndexFunc(all, func(c component) bool { return c.name == name && c.version == version })
	if i < 0 {
		return "", fmt.Errorf("find component %q: no version %q", name, version)
	}
	return all[i].build(ctx)
}

// build returns the path of the program, which changes with everything that goes into it. One build runs at a time on a
// machine: a second caller finds it done.
func (c component) build(ctx context.Context) (string, error) {
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	module := filepath.Join(source, c.module)
	key, err := c.key(module)
	if err != nil {
		return "", err
	}
	bin, err := cacheDir("bin")
	if err != nil {
		return "", err
	}
	path := filepath.Join(bin, c.name+"-"+c.version+"-"+key, c.name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	l, err := lock.Take(ctx, filepath.Join(bin, ".lock"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, c.compile(ctx, module, path)
}

// cgo is 1 for runc, which enters namespaces in C before Go starts threads.
func (c component) cgo() string {
	if c.name == "runc" {
		return "1"
	}
	return "0"
}

// key names the inputs of a build: the pinned modules, the flags and the patch.
func (c component) key(module string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("read pinned modules: %w", err)
		}
		h.Write(b)
	}
	fmt.Fprintln(h, c.flags(), c.pkg)
	if c.patch != nil {
		fmt.Fprintln(h, *c.patch)
	}
	return hex.EncodeToString(h.Sum(nil))[:10], nil
}

// compile builds to a name of its own first, so that a build that is cut short leaves no half program behind.
func (c component) compile(ctx context.Context, module, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	fmt.Fprintf(os.Stderr, "building %s %s, which can take minutes\n", c.name, c.version)
	args := []string{"build"}
	if strings.HasSuffix(c.name, ".test") {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, c.flags()...)
	if c.patch != nil {
		dir, err := os.MkdirTemp(filepath.Dir(path), "source-")
		if err != nil {
			return fmt.Errorf("make folder for the source: %w", err)
		}
		defer os.RemoveAll(dir)
		modfile, err := c.patch.modfile(ctx, module, dir)
		if err != nil {
			return err
		}
		args = append(args, "-modfile="+modfile)
	}
	part := path + ".part"
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", part, c.pkg)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+c.cgo(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s %s: %w\n%s", c.name, c.version, err, tail(out, 4096))
	}
	return os.Rename(part, path)
}

// sourceDir is the folder of this package's source, beside which the pinned modules are.
var sourceDir = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "list", "-f", "{{.Dir}}", "kubediag.org/kubediag/test/cluster")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find pinned modules: %w: %s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
})

// cacheDir makes and gives a folder in the cache of this user.
func cacheDir(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache folder: %w", err)
	}
	dir := filepath.Join(cache, "kubediag", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	return dir, nil
}
