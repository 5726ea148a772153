// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes on this machine for tests: etcd, kube-apiserver 1.37 and, as asked for,
// kube-controller-manager, kube-scheduler, containerd, runc, the CNI plugins and a kubelet of 1.18 or of 1.37. There
// is no image registry, no kube-proxy and no DNS in it.
//
// Kubernetes is built from the modules pinned in the folders beside this file and kept in the user's cache folder;
// the rest are Debian packages, installed when they are missing. A node needs root; a control plane does not.
//
// Several clusters live side by side: each has a folder below /tmp, addresses, a bridge, a cgroup and a containerd of
// its own. The addresses are from 198.18.0.0/15, which RFC 2544 reserves for tests: pods from 198.18.N.0/24, Services
// from 198.19.N.0/24. The API server listens where the Service "kubernetes" says it does, on 198.19.N.1:443, an
// address of the bridge; so pods reach it without any rule in iptables.
//
// A second process, the reaper, holds one end of a pipe and takes everything down when the other end closes, be it
// because of Stop or because the test was killed. Only when both were killed is something left, for Sweep to find.
//
// The changes of a kubelet to the whole machine stay: it sets kernel.panic, kernel.panic_on_oops and
// vm.overcommit_memory, and 1.37 empties /var/lib/kubelet/device-plugins. Do not run this on a machine that is a
// Kubernetes node.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/lock"
)

// Options choose the parts of a cluster. The zero value is an API server and its etcd alone: pods can be created there
// without a ServiceAccount, and a deleted namespace never goes away.
type Options struct {
	// Name finds the cluster again from the command line. Default: none.
	Name string
	// Controllers starts kube-controller-manager and kube-scheduler too. A node always has them.
	Controllers bool
	// Kubelet is the version of the node's kubelet: Kubernetes118, Kubernetes136 or Kubernetes137. Default: no node.
	Kubelet string
	// ControlPlane is the version of everything but the node: Kubernetes124, Kubernetes136 or Kubernetes137. Default: 1.37, or 1.36 if
	// the kubelet is.
	ControlPlane string
	// Containerd is Containerd2, with a runc that it knows, and not for a kubelet 1.18. Default: Debian's.
	Containerd string
	// KubeletRoot is the kubelet's root folder: an absolute path, perhaps through a symbolic link, to a folder that the
	// caller made. Stop empties it and leaves it. Default: below the cluster's folder.
	KubeletRoot string
	// KubeletDisk makes the kubelet's root a symbolic link to a disk of its own: a new ext4 file system of 1 GiB on a loop
	// device, below the cluster's folder. It excludes KubeletRoot and needs a kubelet.
	KubeletDisk bool
	// OwnMounts has the node run in a mount namespace of its own, so that no other process of the machine that copies its
	// own namespace has the mounts of the node. Only KubeletPID leads to these mounts. It excludes KubeletDisk and needs a
	// kubelet.
	OwnMounts bool
	// SyncFrequency is how often the kubelet looks at a running pod's volumes. Default 5 s.
	SyncFrequency time.Duration
	// NodeName is the name of the node. Default "node-1".
	NodeName string
	// KubeletArgs are added to the kubelet's command line.
	KubeletArgs []string
	// APIServerArgs are added to the API server's command line.
	APIServerArgs []string
}

// Cluster is a running cluster. The caller that started it stops it.
type Cluster struct {
	o         Options
	dir       string
	local     net.IP // where etcd and the controllers listen: a loopback address of this cluster alone
	api       net.TCPAddr
	etcd      string // URL
	peer      string // URL at which etcd would speak to others of its kind
	ports     struct{ manager, scheduler int }
	net       network
	admin     user
	ca        *authority
	rest      *rest.Config
	apiServer *process
	runtime   *process // nil without a node
	kubelet   *process // nil without a node, and while it is stopped
	stopped   *process // the kubelet that was stopped, until it is started again
	daemons   daemons
	reaper    *reaper
	stop      func() error
}

// startTimeout bounds Start once the programs are there.
const startTimeout = 5 * time.Minute

// Start starts a cluster and returns when its API server answers and its node, if it has one, is Ready and can take pods.
// It first cleans up after clusters whose owners are dead, and builds the missing programs, which takes minutes the first
// time. When it fails it leaves nothing running, and the error holds the end of every log.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := Sweep(); err != nil {
		return nil, err
	}
	bin, err := o.programs(ctx)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.start(ctx, bin); err != nil {
		err = fmt.Errorf("start cluster: %w\n%s", err, c.allLogs())
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// complete fills in the defaults and refuses options that exclude each other.
func (o *Options) complete() error {
	if !slices.Contains([]string{"", Kubernetes118, Kubernetes136, Kubernetes137}, o.Kubelet) {
		return fmt.Errorf("check option Kubelet: no version %q", o.Kubelet)
	}
	if o.ControlPlane == "" {
		o.ControlPlane = Kubernetes137
		if o.Kubelet == Kubernetes136 {
			o.ControlPlane = Kubernetes136
		}
	}
	if !slices.Contains([]string{Kubernetes124, Kubernetes136, Kubernetes137}, o.ControlPlane) {
		return fmt.Errorf("check option ControlPlane: no version %q", o.ControlPlane)
	}
	if o.KubeletRoot != "" && !filepath.IsAbs(o.KubeletRoot) {
		return fmt.Errorf("check option KubeletRoot: %q is not absolute", o.KubeletRoot)
	}
	if o.KubeletDisk && (o.KubeletRoot != "" || o.Kubelet == "") {
		return fmt.Errorf("check option KubeletDisk: not with kubelet %q and root %q", o.Kubelet, o.KubeletRoot)
	}
	if o.OwnMounts && (o.KubeletDisk || o.Kubelet == "") {
		return fmt.Errorf("check option OwnMounts: not with kubelet %q and a disk of its own: %v", o.Kubelet, o.KubeletDisk)
	}
	if o.Kubelet != "" && os.Geteuid() != 0 {
		return fmt.Errorf("check option Kubelet: %q needs root", o.Kubelet)
	}
	if o.Containerd != "" && (o.Containerd != Containerd2 || o.Kubelet == "" || o.Kubelet == Kubernetes118) {
		return fmt.Errorf("check option Containerd: not %q with kubelet %q", o.Containerd, o.Kubelet)
	}
	o.Controllers = o.Controllers || o.Kubelet != ""
	o.SyncFrequency, o.NodeName = cmp.Or(o.SyncFrequency, 5*time.Second), cmp.Or(o.NodeName, "node-1")
	return nil
}

// Prepare builds and installs the programs for a cluster of these options, so that Start need not; standard error shows its
// progress.
func (o Options) Prepare(ctx context.Context) error {
	if err := o.complete(); err != nil {
		return err
	}
	_, err := o.programs(ctx)
	return err
}

// programs finds, installs or builds every program that the cluster starts, by name.
func (o Options) programs(ctx context.Context) (map[string]string, error) {
	need := []string{"etcd"}
	built := map[string]string{"kube-apiserver": o.ControlPlane}
	if o.Controllers {
		built["kube-controller-manager"], built["kube-scheduler"] = o.ControlPlane, o.ControlPlane
	}
	if o.Kubelet != "" {
		need = append(need, nodePrograms...)
		built["kubelet"] = o.Kubelet
		if o.Containerd != "" {
			need = append(need, "/usr/include/seccomp.h", "/usr/bin/cc") // runc is linked with C
			built["containerd"], built["containerd-shim-runc-v2"], built["runc"] = o.Containerd, o.Containerd, runc
		}
	}
	if o.KubeletDisk {
		need = append(need, diskPrograms...)
	}
	if err := debian.Install(ctx, need...); err != nil {
		return nil, err
	}
	bin := map[string]string{}
	for _, name := range need {
		path, err := debian.LookPath(name)
		if err != nil {
			return nil, err
		}
		bin[name] = path
	}
	for name, version := range built {
		path, err := binary(ctx, name, version)
		if err != nil {
			return nil, err
		}
		bin[name] = path
	}
	return bin, nil
}

// newCluster makes the cluster's folder and the reaper that watches over it.
func newCluster(o Options) (*Cluster, error) {
	dir, held, err := lock.MakeFolder(base, dirPrefix)
	if err != nil {
		return nil, err
	}
	defer held.Close() // the reaper holds it from now on
	c := &Cluster{o: o, dir: dir, local: randomLoopback()}
	for _, name := range []string{"log", "pki", "tmp"} {
		if err := os.Mkdir(c.path(name), 0o700); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err := c.makeKubeletRoot(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if c.reaper, err = startReaper(dir, held); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.stop = sync.OnceValue(c.reaper.finish)
	return c, nil
}

func (c *Cluster) start(ctx context.Context, bin map[string]string) error {
	if c.o.Kubelet != "" {
		if err := errors.Join(c.mountDisk(ctx), c.claimNetwork(ctx)); err != nil {
			return err
		}
	}
	if err := c.startControlPlane(ctx, bin); err != nil {
		return err
	}
	if c.o.Controllers {
		if err := c.startControllers(bin); err != nil {
			return err
		}
	}
	if c.o.Kubelet == "" {
		return c.waitControlPlane(ctx)
	}
	return c.startNode(ctx, bin)
}

// Stop takes everything down that the cluster started, mounted or wrote, and names the parts that it could not. Everybody
// who calls it gets the same answer.
func (c *Cluster) Stop() error { return c.stop() }

// Dir is the cluster's folder. It goes away with the cluster.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig is the path of a kubeconfig for a member of system:masters.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// RESTConfig is a copy of the configuration of a client in system:masters, without a rate limit.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Etcd is the URL of etcd, which asks for no credentials and listens on this machine only.
func (c *Cluster) Etcd() string { return c.etcd }

// NodeName is the name of the node.
func (c *Cluster) NodeName() string { return c.o.NodeName }

// KubeletRoot is the kubelet's root folder, as the kubelet was told it.
func (c *Cluster) KubeletRoot() string { return c.o.KubeletRoot }

// RuntimeEndpoint is the path of containerd's socket.
func (c *Cluster) RuntimeEndpoint() string { return c.path("containerd.sock") }

// KubeletPID is the process ID of the kubelet, or 0 without a node and while it is stopped.
func (c *Cluster) KubeletPID() int {
	if c.kubelet == nil {
		return 0
	}
	return c.kubelet.cmd.Process.Pid
}
