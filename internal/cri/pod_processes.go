// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// PodRuntime lists the containers of a pod: a Client.
type PodRuntime interface {
	// PodRecords lists the records of all containers of a pod, also those that have ended.
	PodRecords(ctx context.Context, podUID string) ([]Container, error)
}

// PodRuns names a part of a pod that still runs on this node: a process in a control group of the pod, or a container that
// has not ended by the runtime's records. It is empty if no part runs: then the last container of the pod has ended. The
// phase of a pod does not show that.
//
// runtime may be nil, and may not answer. Then the processes decide alone, if /proc shows all processes of the machine;
// otherwise the error says that it is not known.
func PodRuns(ctx context.Context, runtime PodRuntime, podUID string) (running string, err error) {
	all, err := PodsRun(ctx, runtime, podUID)
	return all[podUID], err
}

// PodsRun is PodRuns of several pods. It has those that run.
func PodsRun(ctx context.Context, runtime PodRuntime, podUIDs ...string) (running map[string]string, err error) {
	if slices.Contains(podUIDs, "") {
		return nil, errors.New("find processes of pod: its UID is empty")
	}
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	running = map[string]string{}
	for _, pid := range pids {
		if len(running) == len(podUIDs) {
			break
		}
		text, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
		if err != nil && !procfs.Ended(err) {
			return nil, fmt.Errorf("read control group of process %d: %w", pid, err)
		}
		for _, uid := range podUIDs {
			if running[uid] == "" && NamesPod(string(text), uid) {
				running[uid] = fmt.Sprintf("process %d, which is in a control group of the pod", pid)
			}
		}
	}
	for _, uid := range podUIDs {
		if running[uid] != "" {
			continue
		}
		container, err := runsByRecords(ctx, runtime, uid)
		if err != nil {
			return nil, fmt.Errorf("find processes of pod %q: %w", uid, err)
		}
		if container != "" {
			running[uid] = container
		}
	}
	return running, nil
}

// runsByRecords names a container of a pod without a process that has not ended by the runtime's records. Without these it is empty if
// /proc shows all processes of the machine.
func runsByRecords(ctx context.Context, runtime PodRuntime, podUID string) (string, error) {
	silent := errors.New("no container runtime is known")
	if runtime != nil {
		var records []Container
		if records, silent = runtime.PodRecords(ctx, podUID); silent == nil {
			if i := slices.IndexFunc(records, func(c Container) bool { return !c.Exited }); i >= 0 {
				return fmt.Sprintf("container %q, which has not ended by the container runtime's records", records[i].Name), nil
			}
			return "", nil
		}
	}
	visible, err := sys.ProcVisibility()
	if err == nil && visible != sys.SeesAll {
		err = fmt.Errorf("/proc does not show all processes, and the container runtime does not answer: %w", silent)
	}
	return "", err
}

// LastEnd is when the last container of the pod has ended, by the runtime's records; the zero time if there are none.
func LastEnd(ctx context.Context, runtime PodRuntime, podUID string) (last time.Time) {
	if runtime == nil {
		return last
	}
	records, _ := runtime.PodRecords(ctx, podUID) // none: the pod's status has some
	for _, r := range records {
		if r.Finished.After(last) {
			last = r.Finished
		}
	}
	return last
}

// NamesPod reports whether the text of a /proc/PID/cgroup has a name that a kubelet gives the control group of the pod,
// anywhere in it. A process that may make control groups can choose such a name: then the pod is taken to run.
func NamesPod(cgroup, podUID string) bool {
	name := "pod" + podUID
	rest := strings.ReplaceAll(cgroup, "_", "-") // systemd's names of slices have the one for the other
	for {
		_, after, found := strings.Cut(rest, name)
		if !found {
			return false
		}
		if after == "" || strings.ContainsRune("/.:\n ", rune(after[0])) {
			return true
		}
		rest = after
	}
}
