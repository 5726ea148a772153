// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/linux/bounded"
)

// ErrNoRuntime is returned if no socket of a container runtime is known.
var ErrNoRuntime = errors.New("container runtime not found")

// usualSockets are the default sockets of container runtimes. The sockets of one distribution come
// first, and dockershim, which the kubelet itself serves, before the containerd of Docker.
var usualSockets = []string{
	"/run/k3s/containerd/containerd.sock",
	"/run/k0s/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/var/run/dockershim.sock",
	"/run/cri-dockerd.sock",
	"/run/crio/crio.sock",
	"/run/containerd/containerd.sock",
}

// RuntimeSocket returns the path of the container runtime's socket as the caller can connect to it, through the root
// directory of the kubelet's process. The kubelet's arguments and its configuration come first, then the first well-known
// socket that exists. The error is ErrNoRuntime if there is no socket, as on a node without a kubelet process, and
// bounded.ErrNoAnswer if the configured file or socket lies on a file system that does not answer.
func (n *Node) RuntimeSocket(ctx context.Context) (string, error) {
	if n.PID == 0 {
		return "", ErrNoRuntime
	}
	socket, err := readWithin(ctx, "runtime of "+n.process.identityKey(), n.process.runtimeSocket)
	if errors.Is(err, bounded.ErrNoAnswer) {
		err = fmt.Errorf("find socket of container runtime: %w", err)
	}
	return socket, err
}

func (p *candidateProcess) runtimeSocket() (string, error) {
	endpoint := flagValue(p.args, "container-runtime-endpoint")
	if endpoint == "" {
		c, err := p.readConfiguration()
		if err != nil {
			return "", err
		}
		if c != nil {
			endpoint = c.ContainerRuntimeEndpoint
		}
	}
	if endpoint != "" {
		return p.socketPath(endpoint)
	}
	for _, s := range usualSockets {
		if found, err := p.socketPath(s); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%w: none of %s is there", ErrNoRuntime, strings.Join(usualSockets, ", "))
}

// kubeletConfiguration is the part of the kubelet's configuration that is needed here.
type kubeletConfiguration struct {
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	ReadOnlyPort             int    `json:"readOnlyPort"`
}

// readConfiguration reads the configuration file; nil if the arguments name no file.
func (p *candidateProcess) readConfiguration() (*kubeletConfiguration, error) {
	file := flagValue(p.args, "config")
	// In a program with a kubelet in it, --config is the configuration of that program.
	if file == "" || !strings.HasPrefix(p.program, "kubelet") {
		return nil, nil
	}
	content, err := p.readInRoot(file)
	if err != nil {
		return nil, fmt.Errorf("read kubelet configuration %q: %w", file, err)
	}
	c := &kubeletConfiguration{}
	if err := yaml.Unmarshal([]byte(content), c); err != nil {
		return nil, fmt.Errorf("parse kubelet configuration %q: %w", file, err)
	}
	return c, nil
}

// defaultReadOnlyPort is the port of a kubelet that has neither a configuration file nor the flag.
const defaultReadOnlyPort = 10255

// ReadOnlyPort is the port at which the kubelet lists its pods without a login; 0 if it does not.
func (n *Node) ReadOnlyPort(ctx context.Context) (int, error) {
	if n.PID == 0 {
		return 0, nil
	}
	return readWithin(ctx, "configuration of "+n.process.identityKey(), n.process.readOnlyPort)
}

func (p *candidateProcess) readOnlyPort() (int, error) {
	if value := flagValue(p.args, "read-only-port"); value != "" {
		port, err := strconv.Atoi(value)
		if err != nil || port < 0 || port > 65535 {
			return 0, fmt.Errorf("read --read-only-port of kubelet: %q is no port", value)
		}
		return port, nil
	}
	c, err := p.readConfiguration()
	switch {
	case err != nil:
		return 0, err
	case c != nil && (c.ReadOnlyPort < 0 || c.ReadOnlyPort > 65535):
		return 0, fmt.Errorf("read readOnlyPort of kubelet: %d is no port", c.ReadOnlyPort)
	case c != nil:
		return c.ReadOnlyPort, nil
	case strings.HasPrefix(p.program, "kubelet"):
		return defaultReadOnlyPort, nil
	}
	return 0, nil
}

// socketPath turns an endpoint of the kubelet's root directory into a path of ours.
func (p *candidateProcess) socketPath(endpoint string) (string, error) {
	name := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(name, "/") {
		return "", fmt.Errorf("%w: endpoint %q is not that of a unix socket", ErrNoRuntime, endpoint)
	}
	resolved, err := resolveIn(p.rootPrefix(), name, nil)
	if err != nil {
		return "", fmt.Errorf("%w: resolve endpoint %q: %w", ErrNoRuntime, endpoint, err)
	}
	info, err := os.Lstat(p.rootPrefix() + resolved)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoRuntime, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return "", fmt.Errorf("%w: %q is not a socket", ErrNoRuntime, resolved)
	}
	return p.rootPrefix() + resolved, nil
}
