// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// podLogs has a directory for the logs of each pod, from kubelets since 1.14.
const podLogs = "/var/log/pods"

// maxPodLogs bounds the directories of logs that are read.
const maxPodLogs = 65536

// PodName is the name of a pod for people.
type PodName struct {
	Namespace, Name string
}

// PodNames reads the names of pods, by UID, from the directories of their logs, through the root directory of the
// kubelet's process. It needs no API server and no container runtime. Pods without logs are not in the
// result. A process that may write to that directory chooses its entries: the names are for people, and no decision rests
// on them. A file system that may hang is not read (mountns.ErrMayBlock). A call to any other file system ends after
// SearchTimeout (bounded.ErrNoAnswer).
func (n *Node) PodNames(ctx context.Context) (map[string]PodName, error) {
	names, err := readWithin(ctx, "logs of "+n.process.identityKey(), n.readPodNames)
	if errors.Is(err, bounded.ErrNoAnswer) {
		err = fmt.Errorf("list log directory %q: %w", podLogs, err)
	}
	return names, err
}

func (n *Node) readPodNames() (map[string]PodName, error) {
	prefix, table := "", "/proc/thread-self/mountinfo"
	if n.PID != 0 {
		prefix, table = n.process.rootPrefix(), n.process.dir+"/mountinfo"
	}
	if n.tables != nil {
		mounts, err := n.tables.table()
		if err != nil {
			return nil, fmt.Errorf("read mounts of kubelet: %w", err)
		}
		return podNames(prefix, mounts)
	}
	text, err := os.ReadFile(table)
	if err != nil {
		return nil, fmt.Errorf("read mounts of kubelet: %w", err)
	}
	mounts, err := mountinfo.ParseBytes(text)
	if err != nil {
		return nil, fmt.Errorf("read mounts of kubelet: %w", err)
	}
	return podNames(prefix, mountinfo.NewTable(mounts))
}

func podNames(prefix string, mounts *mountinfo.Table) (map[string]PodName, error) {
	answers := func(name string, _ *sys.FD) error {
		if m, ok := mounts.On(name); ok && mountns.MayHang(m.FSType) {
			return mountns.ErrMayBlock
		}
		return nil
	}
	dir, err := resolveIn(prefix, podLogs, answers)
	if err != nil {
		return nil, fmt.Errorf("resolve log directory %q: %w", podLogs, err)
	}
	f, err := os.Open(prefix + dir)
	if err != nil {
		return nil, fmt.Errorf("open log directory: %w", err)
	}
	defer f.Close()
	entries, err := f.Readdirnames(maxPodLogs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list log directory: %w", err)
	}
	slices.Sort(entries)
	names := map[string]PodName{}
	for _, entry := range entries {
		uid, name, ok := parsePodLogs(entry)
		if _, twice := names[uid]; ok && !twice {
			names[uid] = name
		}
	}
	return names, nil
}

// parsePodLogs takes NAMESPACE_NAME_UID apart. The three parts cannot hold the character between them.
func parsePodLogs(entry string) (uid string, name PodName, ok bool) {
	parts := strings.Split(entry, "_")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return "", PodName{}, false
	}
	return parts[2], PodName{parts[0], parts[1]}, true
}
