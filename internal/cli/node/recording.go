// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
)

// nodeRecording is all that a node has answered to a scan.
type nodeRecording struct {
	node nodeRecord
	// evidence is that of each search, by the name of its entry in a bundle.
	evidence map[string]any
}

// nodeRecord has the facts of a node that a scan needs beside the evidence of its searches.
type nodeRecord struct {
	Seen        scanOrigin `json:"seen"`
	KubeletRoot string     `json:"kubeletRoot"`
	PodsDir     string     `json:"podsDir"`
	KubeletPID  int        `json:"kubeletPID"`
	KubeletDown bool       `json:"kubeletDown,omitempty"`
	// MountNamespace is an inode number.
	MountNamespace uint64   `json:"mountNamespace"`
	Notes          []string `json:"notes,omitempty"`
	// Entries are those of the directory of the pods, PodUIDs the pods.
	Entries []string `json:"entries"`
	PodUIDs []string `json:"podUIDs"`
	// PodSpecs is whether the specs of pods were given.
	PodSpecs bool `json:"podSpecs"`
	// RuntimeNames and LogNames are names of pods, States those of containers.
	RuntimeNames namesRecord      `json:"runtimeNames"`
	LogNames     namesRecord      `json:"logNames"`
	States       []cri.State      `json:"states,omitempty"`
	StatesError  string           `json:"statesError,omitempty"`
	Denied       int              `json:"denied"`
	Gaps         []mountstate.Gap `json:"gaps,omitempty"`
}

// namesRecord is the answer of a source of names.
type namesRecord struct {
	Asked     bool     `json:"asked"`
	Names     podNames `json:"names,omitempty"`
	Error     string   `json:"error,omitempty"`
	NoRuntime bool     `json:"noRuntime,omitempty"`
}

// recordNames writes an answer down.
func recordNames(names podNames, err error) namesRecord {
	r := namesRecord{Asked: true, Names: names, NoRuntime: errors.Is(err, kubelet.ErrNoRuntime)}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// recordedError is an error that was written down.
type recordedError struct {
	text    string
	wrapped error // that it wraps; nil: none that matters
}

// Error is the text.
func (e recordedError) Error() string { return e.text }

// Unwrap is the error that it wrapped.
func (e recordedError) Unwrap() error { return e.wrapped }

// recordedAnswer is the answer that was written down.
func (n namesRecord) recordedAnswer() (podNames, error) {
	switch {
	case !n.Asked:
		return nil, errNotRecorded
	case n.Error != "" && n.NoRuntime:
		return nil, recordedError{n.Error, kubelet.ErrNoRuntime}
	case n.Error != "":
		return nil, recordedError{n.Error, nil}
	}
	return n.Names, nil
}

// nodeRecorder writes down the answers of a node. An answer may come after its question was given up, so several goroutines
// may use the recorder.
type nodeRecorder struct {
	mu       sync.Mutex
	recorded nodeRecording
}

// record writes down under the lock. Without a recorder it does nothing.
func (r *nodeRecorder) record(write func(has *nodeRecording)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	write(&r.recorded)
}

// finish asks the questions that a scan without faults leaves out, and returns the record.
func (r *nodeRecorder) finish(ctx context.Context, s *scan) nodeRecording {
	ask := func(known bool, names func(context.Context) (podNames, error)) {
		if !known {
			_, _ = callWithin(ctx, nameTimeout, names) // an error is written down
		}
	}
	r.mu.Lock()
	has := r.recorded
	r.mu.Unlock()
	ask(has.node.RuntimeNames.Asked, s.source.runtimeNames)
	ask(has.node.LogNames.Asked, s.source.logNames)
	if has.node.PodUIDs == nil {
		_, _ = callWithin(ctx, nameTimeout, s.source.podUIDs) // without them a pod cannot be named
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n, l := &r.recorded.node, s.looked
	n.KubeletRoot, n.PodsDir, n.KubeletPID, n.KubeletDown = s.node.Root, s.node.PodsDir(), s.node.PID, l.Kubelet.Down
	n.MountNamespace, n.PodSpecs = l.Kubelet.MountNamespace, s.specs != nil
	n.Seen = scanOrigin{Node: machineName(), Time: time.Now().UTC().Truncate(time.Second), Blind: processesHidden()}
	if s.seen != nil {
		n.Seen = *s.seen
	}
	return r.recorded
}

// errNotRecorded is the error for an answer that a bundle lacks.
var errNotRecorded = errors.New("the bundle has no answer of the node to that")

// recordedSource answers from a bundle.
type recordedSource struct {
	node nodeRecord
	// evidence is that of the searches which the bundle has, by its entry.
	evidence map[string]mountstate.Inspector
}

func (r recordedSource) entries(context.Context) ([]string, error) { return r.node.Entries, nil }
func (r recordedSource) podUIDs(context.Context) ([]string, error) { return r.node.PodUIDs, nil }

func (r recordedSource) look(ctx context.Context, s searches.Search, _ searches.Node) (mountstate.Survey, error) {
	if again := r.evidence[s.Entry]; again != nil {
		return again.Look(ctx, mountstate.Scope{})
	}
	return mountstate.Survey{}, errNotRecorded
}

func (r recordedSource) runtimeNames(context.Context) (podNames, error) {
	return r.node.RuntimeNames.recordedAnswer()
}

func (r recordedSource) logNames(context.Context) (podNames, error) {
	return r.node.LogNames.recordedAnswer()
}

func (r recordedSource) states(_ context.Context, wanted func(podUID, container string) bool) ([]cri.State, error) {
	if r.node.StatesError != "" {
		return nil, recordedError{r.node.StatesError, nil}
	}
	return slices.DeleteFunc(slices.Clone(r.node.States), func(s cri.State) bool { return !wanted(s.PodUID, s.Container) }), nil
}

func (r recordedSource) unseen(int, int) (int, []mountstate.Gap) { return r.node.Denied, r.node.Gaps }
