// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaving says of a pod that is being deleted whether the kubelet takes it down, or what of it is still on the node
// though its time is over.
//
// A pod has its grace period, which its deletionTimestamp includes, and until its last container has ended. A kubelet that
// can then undo its mounts is done in seconds. The mounts are those of the kubelet's table at and below the pod's directory,
// also those that others hide. The package judges no mount and changes nothing. It asks no file system that may hang.
//
// It rests on kubernetes/pkg/kubelet, which removes a pod from the API server once none of its volumes is mounted.
package leaving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// maxPlacesNamed bounds how many mounts and directories a sentence names.
const maxPlacesNamed = 10

// Inspector looks at pods that are being deleted.
type Inspector struct {
	Kubelet kubelet.Locator
	// Runtime is nil if there is none: then the processes of the node say alone whether a container still runs.
	Runtime cri.PodRuntime
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// State is how far a pod is that is being deleted.
type State struct {
	Pod *corev1.Pod
	// Stuck is set if its time is over, and something of it is still mounted or there.
	Stuck bool
	// Over is set if it is proven that the last container of such a pod has ended.
	Over bool
	// Text is a sentence about it without a full stop.
	Text string
}

// Inspect says how far those of the pods are that are being deleted. It passes over the others.
func (i *Inspector) Inspect(ctx context.Context, pods ...*corev1.Pod) (states []State, err error) {
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	var going []*corev1.Pod
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp == nil:
		case now().Before(pod.DeletionTimestamp.Add(mountstate.Grace)):
			states = append(states, State{Pod: pod, Text: subject(pod) + ", and the kubelet is taking it down"})
		default:
			going = append(going, pod)
		}
	}
	if len(going) == 0 {
		return states, nil
	}
	left, err := i.findRemains(ctx, going)
	if err != nil {
		return nil, fmt.Errorf("look at pods that are being deleted: %w", err)
	}
	for n, pod := range going {
		states = append(states, i.judge(ctx, pod, left[n], now()))
	}
	return states, ctx.Err()
}

// Remains are what is left of a pod whose time is over.
type Remains struct {
	Pod fault.Pod `json:"pod"`
	// Path is its directory, Why the sentence about it.
	Path string `json:"path"`
	Why  string `json:"why"`
	// Over is whether it is proven that it wants nothing any more.
	Over bool `json:"over,omitempty"`
}

// Look says what is left on a node of those of the pods whose time is over.
func (i *Inspector) Look(ctx context.Context, node *kubelet.Node, pods ...*corev1.Pod) (all []Remains, err error) {
	states, err := i.Inspect(ctx, pods...)
	for _, s := range states {
		if s.Stuck {
			all = append(all, Remains{podinfo.PodOf(s.Pod), node.PodDir(string(s.Pod.UID)), s.Text, s.Over})
		}
	}
	slices.SortFunc(all, func(a, b Remains) int { return strings.Compare(a.Path, b.Path) })
	return all, err
}

// Summarize is a look at such pods as all looks give it. Nothing says whether what is left of one is broken.
func Summarize(all []Remains) mountstate.Survey {
	sum := mountstate.Survey{Evidence: func() any { return all }}
	for _, r := range all {
		sum.Unknown.AddPlace(mountstate.Place{Pod: r.Pod, Point: r.Path, Reason: r.Why})
		if r.Over {
			sum.Over = append(sum.Over, r.Pod.UID)
		}
	}
	return sum
}

func subject(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
}

// judge decides about a pod whose grace period has been over for long enough.
func (i *Inspector) judge(ctx context.Context, pod *corev1.Pod, remains []string, now time.Time) State {
	s := State{Pod: pod, Text: subject(pod)}
	if len(remains) == 0 {
		s.Text += ", and nothing of it is mounted on this node any more"
		if len(pod.Finalizers) > 0 {
			s.Text += "; its finalizers keep it: " + strings.Join(pod.Finalizers, ", ")
		}
		return s
	}
	since := "since " + pod.DeletionTimestamp.UTC().Format(time.RFC3339)
	runs, err := cri.PodRuns(ctx, i.Runtime, string(pod.UID))
	switch {
	case err != nil:
		s.Stuck = true
		s.Text += fmt.Sprintf(" %s, and it is not known whether a container of it still runs: %v; still there: %s", since, err, listText(remains))
	case runs != "":
		s.Text += fmt.Sprintf(" %s, and it still runs: %s", since, runs)
	case !mountstate.TimeIsOver(pod, cri.LastEnd(ctx, i.Runtime, string(pod.UID)), now):
		s.Text += ", and the kubelet is taking it down"
	default:
		s.Stuck, s.Over = true, true
		s.Text += fmt.Sprintf(" %s, and its last container has ended, but this is still there: %s", since, listText(remains))
	}
	return s
}

func listText(texts []string) string {
	text := strings.Join(texts[:min(len(texts), maxPlacesNamed)], "; ")
	if more := len(texts) - maxPlacesNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// findRemains lists for each pod what is mounted below its directory, and the directories of its volumes with no mount.
func (i *Inspector) findRemains(ctx context.Context, pods []*corev1.Pod) ([][]string, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	all := make([][]string, len(pods))
	err = node.Do(ctx, func() error {
		table, err := node.TableInside()
		if err != nil {
			return err
		}
		for n, pod := range pods {
			if all[n], err = remainsOf(node, table, string(pod.UID)); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
	return all, err
}

// remainsOf runs inside the kubelet's namespace.
func remainsOf(node *kubelet.Node, table *mountinfo.Table, uid string) (texts []string, err error) {
	if node.VolumeDir(uid, kubelet.CSIPlugin, "any") == "" {
		return nil, fmt.Errorf("read pod: its UID %q cannot be the name of a directory", uid)
	}
	mounted := map[string]bool{}
	for _, m := range table.Under(node.PodDir(uid)) {
		mounted[m.Point] = true
		texts = append(texts, describeMount(node, table, m))
	}
	volumes, err := node.PodVolumes(uid)
	switch {
	case errors.Is(err, mountns.ErrMayBlock): // by one of those mounts
		return append(texts, fmt.Sprintf("directories of volumes, which were not listed: %v", err)), nil
	case err != nil:
		return nil, err
	}
	for _, v := range volumes {
		if point := node.VolumePoint(v); point != "" && !mounted[point] {
			texts = append(texts, fmt.Sprintf("the directory of volume %q at %q, with nothing mounted%s", v.Name, node.VolumeDir(uid, v.Plugin, v.Name),
				recordText(table, v, point)))
		}
	}
	return texts, nil
}

// describeMount is a mount with what lies over it, and a missing record.
func describeMount(node *kubelet.Node, table *mountinfo.Table, m mountinfo.Mount) string {
	text := fmt.Sprintf("mount %d of type %q at %q", m.ID, m.FSType, m.Point)
	if m.Root != "/" {
		text += fmt.Sprintf(", which shows %q", m.Root)
	}
	if visible, ok := table.On(m.Point); ok && visible.ID != m.ID {
		text += fmt.Sprintf(", hidden by mount %d of type %q at %q", visible.ID, visible.FSType, visible.Point)
	} else if v, ok := node.ParseVolume(m.Point); ok {
		text += recordText(table, v, m.Point)
	}
	return text
}

// recordText says of a CSI volume by which driver the kubelet would undo it.
func recordText(table *mountinfo.Table, v kubelet.Volume, point string) string {
	if v.Plugin != kubelet.CSIPlugin {
		return ""
	}
	record, err := kubelet.ReadVolumeRecordAt(table, point)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, sys.ENOENT):
		return fmt.Sprintf(" (its record %q is missing, and without it the kubelet cannot take the volume down)", kubelet.VolumeRecordPath(point))
	case err != nil:
		return fmt.Sprintf(" (%v)", err)
	}
	return fmt.Sprintf(" (of CSI driver %s)", record.Driver)
}
