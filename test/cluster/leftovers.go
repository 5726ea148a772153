// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// shimSockets lists the sockets of the shims whose containerd has its state in dir. containerd forgets a shim that was
// killed before it.
func shimSockets(dir string) (sockets []string) {
	addresses, _ := filepath.Glob(filepath.Join(dir, "containerd-state", "io.containerd.runtime.v2.task", "*", "*", "address"))
	for _, path := range addresses {
		address, _ := os.ReadFile(path)
		if socket, ok := strings.CutPrefix(string(address), "unix:///run/containerd/s/"); ok {
			sockets = append(sockets, filepath.Join("/run/containerd/s", filepath.Base(socket)))
		}
	}
	return sockets
}

// removeSharedFiles removes the cluster's files from folders that are shared with others and whose place cannot be
// chosen: the sockets of shims, the results that CNI caches, and the logs of a kubelet 1.18.
func removeSharedFiles(dir string, sockets []string) error {
	var errs []error
	for _, socket := range sockets {
		errs = append(errs, removeFile(socket))
	}
	results, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, path := range results {
		if text, _ := os.ReadFile(path); bytes.Contains(text, []byte(dir+"/")) {
			errs = append(errs, removeFile(path))
		}
	}
	return errors.Join(append(errs, removeLogs(dir))...)
}

// removeLogs removes the log folders of the pods that the runtime's log names, and the links into them. The kubelet's log names pods
// of other clusters, too, as it has seen their cgroups.
func removeLogs(dir string) error {
	seen, _ := os.ReadFile(filepath.Join(dir, "log", "containerd.log"))
	ours := []string{dir}
	var errs []error
	pods, _ := os.ReadDir("/var/log/pods")
	for _, pod := range pods {
		uid := pod.Name()[strings.LastIndexByte(pod.Name(), '_')+1:]
		if len(uid) == 36 && bytes.Contains(seen, []byte("Uid:"+uid+",")) {
			path := filepath.Join("/var/log/pods", pod.Name())
			ours = append(ours, path)
			errs = append(errs, os.RemoveAll(path))
		}
	}
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		target, _ := os.Readlink(link)
		if slices.ContainsFunc(ours, func(d string) bool { return strings.HasPrefix(target, d+"/") }) {
			errs = append(errs, removeFile(link))
		}
	}
	return errors.Join(errs...)
}

// releaseDevicePlugins removes the files that a kubelet from 1.36 on left in the folder that it shares with every other kubelet,
// unless another one answers there.
func (s state) releaseDevicePlugins() error {
	const dir = "/var/lib/kubelet/device-plugins"
	if s.Kubelet == "" || s.Kubelet == Kubernetes118 {
		return nil
	}
	if conn, err := net.Dial("unix", dir+"/kubelet.sock"); err == nil {
		return conn.Close()
	}
	err := errors.Join(removeFile(dir+"/kubelet.sock"), removeFile(dir+"/kubelet_internal_checkpoint"))
	_, _ = os.Remove(dir), os.Remove(filepath.Dir(dir)) // they stay when something else is in them
	return err
}

// removeFile is os.Remove for a file that may be gone.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
