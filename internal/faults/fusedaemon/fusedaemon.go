// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package fusedaemon finds out why the daemon of a volume is gone: what has become of the containers of the driver that
// started it, and whether the kernel has killed a process of theirs.
//
// The kernel says which process listens on the driver's socket, by the credentials of a connection. The path in
// /proc/net/unix is the one inside of the driver's container, which is the same for all drivers. From there it goes by
// the runtime's records, and by the kernel's log. A daemon that ran elsewhere, as those of drivers do that make a pod
// for each mount, leaves no trace there: where nothing explains it, the answer says that it is not known.
//
// It changes nothing. It rests on unix(7), on the layout <root>/plugins/<driver>/csi.sock that the kubelet's plugin
// watcher recommends, and on CRI.
package fusedaemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/oomlog"
	"kubediag.org/kubediag/internal/printable"
)

// Runtime is the container runtime of this node.
type Runtime interface {
	// Owner returns the container of a process, by the text of its /proc/PID/cgroup; cri.ErrNotFound if it is in none.
	Owner(ctx context.Context, cgroup string) (cri.Owner, error)
	// PodRecords lists the records of all containers of a pod, the newest first.
	PodRecords(ctx context.Context, podUID string) ([]cri.Container, error)
}

// Analyzer finds out why daemons ended. It is safe for use by several goroutines.
type Analyzer struct {
	Kubelet kubelet.Locator
	// Runtime is nil if there is none.
	Runtime Runtime
	// Kills are the processes that the kernel has killed when it was out of memory. Nil: those in the kernel's log.
	Kills func(context.Context) ([]oomlog.Kill, error)
}

// Question asks for the daemon of one volume.
type Question struct {
	// Driver is the CSI driver's name.
	Driver string
	// Mounted is when the file system of the volume was mounted, by the kernel's word; a container that ended before cannot have
	// been its daemon. Zero: not known.
	Mounted time.Time
	// Seen is when the fault was first seen; a container that ended later was not its cause. Zero: now.
	Seen time.Time
}

// Cause is why a daemon is gone.
type Cause string

// Causes.
const (
	// OOMKilled: the kernel was out of memory and killed it, or another process of its container.
	OOMKilled Cause = "OOMKilled"
	// ContainerEnded: its container ended, and took it along.
	ContainerEnded Cause = "ContainerEnded"
	// PodReplaced: the driver's container was started after the volume was mounted, and the runtime has no record of
	// one before it.
	PodReplaced Cause = "PodReplaced"
	// Unknown: nothing that was looked at explains it.
	Unknown Cause = "Unknown"
)

// Exit is the result of an analysis.
type Exit struct {
	Cause Cause
	// Pod is the driver's, Container the one in it that serves the driver. Both are empty if they were not found.
	Pod       fault.Pod
	Container string
	// Before is the container that ended, After the one that serves the driver now. Nil: none, or not known.
	Before, After *cri.Container
	// Kill is the process that the kernel killed; nil: none that is known of.
	Kill *oomlog.Kill
	// Sentences say all of this to people, and name the facts that could not be found out.
	Sentences []string
}

// clockSkew is how far the clocks of the kernel's log, of the runtime and of ours may be apart. The runtime reads the
// clock that mounts have their time of, and not before a container has ended: clockSkew allows for rounding. A restarted
// driver mounts within seconds of its container's end.
const (
	clockSkew    = 10 * time.Second
	timeRounding = time.Second
)

// includes reports whether something that happened at a time, told as much as early before it, may be the cause.
func (q Question) includes(at time.Time, early time.Duration) bool {
	if at.IsZero() || !q.Mounted.IsZero() && at.Before(q.Mounted.Add(-early)) {
		return false
	}
	return !at.After(q.Seen.Add(clockSkew))
}

// AnalyzeAll says the known facts about several volumes, in their order. It gives no error: a part that could not be looked at
// is said in a sentence. Facts that the volumes have in common are read, and asked for, once.
func (t *Analyzer) AnalyzeAll(ctx context.Context, questions []Question) []Exit {
	exits, now := make([]Exit, len(questions)), time.Now()
	r := &reading{
		analyzer: t, listeners: answerMemory[cri.Owner]{}, owners: answerMemory[cri.Owner]{},
		containers: answerMemory[[]cri.Container]{},
	}
	readLog := sync.OnceValues(func() ([]oomlog.Kill, error) {
		if t.Kills != nil {
			return t.Kills(ctx)
		}
		return oomlog.Kills(ctx)
	})
	for i, q := range questions {
		if q.Seen.IsZero() {
			q.Seen = now
		}
		search := &exitSearch{reading: r, question: q, exit: Exit{Cause: Unknown}}
		if !q.Mounted.IsZero() {
			search.addSentence("the dead file system was mounted at %s", printable.Time(q.Mounted))
		}
		kills, err := readLog()
		if err != nil {
			search.addSentence("whether the kernel has killed it for lack of memory is not known: %v", err)
		}
		for _, k := range kills {
			if q.includes(k.Time, clockSkew) {
				search.kills = append(search.kills, k)
			}
		}
		search.findPod(ctx)
		if uid := search.exit.Pod.UID; uid != "" {
			search.containerRecords, err = r.containers.getOrAsk(uid, func() ([]cri.Container, error) { return t.Runtime.PodRecords(ctx, uid) })
			if err != nil {
				search.addSentence("the state of the driver's containers is unknown: %v", err)
			}
			search.findKill()
			search.findEnded()
			search.findCause()
		}
		search.addUnknowns()
		exits[i] = search.exit
	}
	return exits
}

// exitSearch is one look.
type exitSearch struct {
	reading            *reading
	question           Question
	exit               Exit
	servingContainerID string // the ID of the container that serves the driver now
	containerRecords   []cri.Container
	kills              []oomlog.Kill
}

var errNoRuntime = errors.New("no container runtime is known")
