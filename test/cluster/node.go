// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/reap"
)

// startNode starts containerd and the kubelet, and returns when pods can run.
func (c *Cluster) startNode(ctx context.Context, bin map[string]string) error {
	if err := c.startContainerd(ctx, bin); err != nil {
		return err
	}
	if err := c.loadDefaultImages(ctx, bin["busybox"]); err != nil {
		return err
	}
	return c.keepKubelet(func() error { return c.startKubelet(bin["kubelet"]) }, func() error {
		if err := c.waitControlPlane(ctx); err != nil {
			return err
		}
		return c.waitNode(ctx)
	})
}

// maxKubeletStart is for how long a kubelet is started again that ends because the mount table changes all the time. On a node, systemd
// does that without end. A start takes about a second until then.
const maxKubeletStart = 5 * time.Minute

// keepKubelet starts the kubelet, again if it ends because of others' mounts before it is ready.
func (c *Cluster) keepKubelet(start, ready func() error) error {
	for began := time.Now(); ; {
		if err := start(); err != nil {
			return err
		}
		err := ready()
		if err == nil || time.Since(began) > maxKubeletStart || !c.metMounts() {
			return err
		}
		c.end(c.kubelet)
	}
}

// metMounts reports whether the kubelet has ended because other programs mounted while it started: ConsistentRead in its package
// util/mount, of /proc/mounts or of /proc/self/mountinfo.
func (c *Cluster) metMounts() bool {
	select {
	case <-c.kubelet.done:
		return strings.Contains(c.Logs("kubelet"), "could not get consistent content of /proc/")
	default:
		return false
	}
}

// containerdConfig keeps containerd in the cluster's folder. restrict_oom_score_adj is for machines that withhold
// CAP_SYS_RESOURCE: containers do not start there without it. The plugin nri would be at one place for all clusters. containerd 2 reads
// this version of a configuration, too.
var containerdConfig = template.Must(template.New("containerd").Parse(`version = 2
root = "{{.Dir}}/containerd"
state = "{{.Dir}}/containerd-state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri"]
[grpc]
address = "{{.Dir}}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + PauseImage + `"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "` + debian.CNIPlugins + `"
conf_dir = "{{.Dir}}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
{{with .Shim}}runtime_path = "{{.}}"
{{end}}[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{{.Dir}}/runc"
{{with .Runc}}BinaryName = "{{.}}"
{{end}}`))

func (c *Cluster) startContainerd(ctx context.Context, bin map[string]string) error {
	files := struct{ Dir, Shim, Runc string }{Dir: c.dir} // containerd finds Debian's programs by itself
	if c.o.Containerd != "" {
		files.Shim, files.Runc = bin["containerd-shim-runc-v2"], bin["runc"]
		if err := os.Chmod(c.dir, 0o700|passable); err != nil { // the root directory of a container is below it, also for a user namespace
			return fmt.Errorf("open cluster folder: %w", err)
		}
	}
	f, err := os.Create(c.path("containerd.toml"))
	if err != nil {
		return fmt.Errorf("write containerd configuration: %w", err)
	}
	if err := errors.Join(containerdConfig.Execute(f, files), f.Close(), c.writeCNI()); err != nil {
		return fmt.Errorf("write containerd configuration: %w", err)
	}
	line := []string{bin["containerd"], "--config=" + f.Name()}
	if c.o.OwnMounts {
		line = slices.Concat(unshareMounts, line)
	}
	if c.runtime, err = c.spawnLine("containerd", line); err != nil {
		return err
	}
	return c.wait(ctx, "containerd", c.runtimeReady)
}

// writeCNI lets pods have addresses from the cluster's share on its bridge. The bridge has its own address already;
// a plugin that gave it one would switch on forwarding for the whole machine.
func (c *Cluster) writeCNI() error {
	return errors.Join(os.Mkdir(c.path("cni"), 0o755), writeJSON(c.path("cni", "10-test.conflist"), map[string]any{
		"cniVersion": "0.4.0",
		"name":       filepath.Base(c.dir),
		"plugins": []any{map[string]any{
			"type":   "bridge",
			"bridge": c.net.bridge(),
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": c.path("cni-ipam"),
				"ranges":  [][]any{{map[string]any{"subnet": c.net.pods(), "gateway": c.net.node().String()}}},
				"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}))
}

func (c *Cluster) startKubelet(path string) error {
	roots, err := reap.CgroupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := os.MkdirAll(filepath.Join(root, filepath.Base(c.dir)), 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	config := c.path("kubelet.json")
	if err := writeJSON(config, c.kubeletConfig()); err != nil {
		return err
	}
	args := []string{
		"--config=" + config, "--kubeconfig=" + c.path("kubelet.kubeconfig"), "--root-dir=" + c.o.KubeletRoot,
		"--cert-dir=" + c.path("pki"), "--hostname-override=" + c.o.NodeName, "--node-ip=" + c.net.node().String(),
		"--v=2",
	}
	if c.o.Kubelet == Kubernetes118 {
		args = append(args, "--container-runtime=remote", "--container-runtime-endpoint=unix://"+c.RuntimeEndpoint(),
			"--volume-plugin-dir="+c.path("volume-plugins"))
	}
	line := slices.Concat([]string{path}, args, c.o.KubeletArgs)
	if c.o.OwnMounts {
		line = slices.Concat(c.enterMounts(), line)
	}
	c.kubelet, err = c.spawnLine("kubelet", line)
	return err
}

// unshareMounts begins the line of a program that has a mount namespace of its own: it sees the mounts of the machine, and
// the machine does not see its mounts.
var unshareMounts = []string{"unshare", "--mount", "--propagation=slave", "--"}

// enterMounts begins the line of a program that is where the container runtime is.
func (c *Cluster) enterMounts() []string {
	return []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", c.runtime.cmd.Process.Pid), "--"}
}

// spawnLine starts the daemon that a line names. Programs that only prepare its process are looked up.
func (c *Cluster) spawnLine(name string, line []string) (*process, error) {
	path := line[0]
	if !filepath.IsAbs(path) {
		var err error
		if path, err = debian.LookPath(path); err != nil {
			return nil, err
		}
	}
	return c.spawn(name, path, line[1:]...)
}

// kubeletConfig is a KubeletConfiguration that keeps the kubelet on the cluster's addresses and below its cgroup, away
// from iptables, and from evicting pods or images because the machine's disk is full.
func (c *Cluster) kubeletConfig() map[string]any {
	conf := map[string]any{
		"apiVersion":                  "kubelet.config.k8s.io/v1beta1",
		"kind":                        "KubeletConfiguration",
		"address":                     c.net.node().String(),
		"healthzBindAddress":          c.net.node().String(),
		"readOnlyPort":                0,
		"authentication":              map[string]any{"x509": map[string]any{"clientCAFile": c.path("pki", "ca.crt")}},
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  "/" + filepath.Base(c.dir),
		"failSwapOn":                  false,
		"oomScoreAdj":                 0,
		"makeIPTablesUtilChains":      false,
		"nodeStatusUpdateFrequency":   "1s", // so that a new node is Ready soon
		"nodeStatusReportFrequency":   "5m",
		"syncFrequency":               c.o.SyncFrequency.String(),
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
	}
	switch c.o.Kubelet {
	case Kubernetes118:
		conf["featureGates"] = map[string]bool{"DevicePlugins": false} // they would be in a folder shared by all kubelets
	case Kubernetes136, Kubernetes137:
		conf["containerRuntimeEndpoint"] = "unix://" + c.RuntimeEndpoint()
		conf["failCgroupV1"] = false
		conf["podLogsDir"] = c.path("pod-logs")
		conf["volumePluginDir"] = c.path("volume-plugins")
	}
	return conf
}

// waitNode returns when the scheduler may place pods on the node.
func (c *Cluster) waitNode(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return c.wait(ctx, "node", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, c.o.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node has taints: %v", node.Spec.Taints)
		}
		ready := func(cond corev1.NodeCondition) bool {
			return cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue
		}
		if !slices.ContainsFunc(node.Status.Conditions, ready) {
			return fmt.Errorf("node is not ready: %v", node.Status.Conditions)
		}
		return nil
	})
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %q: %w", filepath.Base(path), err)
	}
	return os.WriteFile(path, b, 0o600)
}
