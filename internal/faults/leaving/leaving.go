// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaving says of a pod that is being deleted whether the kubelet takes it down, or what of it is still on the node
// though its time is over.
//
// A pod has its grace period, which its deletionTimestamp includes, and until its last container has ended. A kubelet that
// can then undo its mounts is done in seconds. The mounts are those of the kubelet's table at and below the pod's directory,
// also those that others hide. Remains are the facts, and Judge alone decides from them: a bundle has the facts. Broken mounts, and those
// that lie inside volumes, are left to those who ask file systems. The package changes nothing, and asks no file system that may hang.
//
// It rests on kubernetes/pkg/kubelet, which removes a pod from the API server once none of its volumes is mounted.
package leaving

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Inspector looks at pods that are being deleted.
type Inspector struct {
	Kubelet kubelet.Locator
	// Runtime is nil if there is none: then the processes of the node say alone whether a container still runs.
	Runtime cri.PodRuntime
	// Users finds the users of a mount of the kubelet's namespace because of which the kernel refuses to unmount it. Nil: that is not asked.
	Users func(ctx context.Context, m mountinfo.Mount) ([]Process, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// State is how far a pod is that is being deleted.
type State struct {
	Pod *corev1.Pod
	// Text is a sentence about it without a full stop.
	Text string
	// Remains are nil if it has time left, or still runs, or nothing of it is left.
	Remains *Remains
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
	searches := maxSearches
	for n, pod := range going {
		states = append(states, i.stateOf(ctx, pod, left[n], now(), &searches))
	}
	return states, ctx.Err()
}

// Look is the search for pods that cannot go, among those that are given.
func (i *Inspector) Look(ctx context.Context, pods ...*corev1.Pod) (mountstate.Survey, error) {
	states, err := i.Inspect(ctx, pods...)
	all := []Remains{}
	for _, s := range states {
		if s.Remains != nil {
			all = append(all, *s.Remains)
		}
	}
	slices.SortFunc(all, func(a, b Remains) int { return strings.Compare(a.Path, b.Path) })
	return Summarize(all), err
}

func subject(pod *corev1.Pod) string {
	return fmt.Sprintf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
}

// stateOf decides about a pod whose grace period has been over for long enough.
func (i *Inspector) stateOf(ctx context.Context, pod *corev1.Pod, remains *Remains, now time.Time, searches *int) State {
	s := State{Pod: pod, Text: subject(pod)}
	if len(remains.Places) == 0 && len(remains.NotListed) == 0 {
		s.Text += ", and nothing of it is mounted on this node any more"
		if len(pod.Finalizers) > 0 {
			s.Text += "; its finalizers keep it: " + strings.Join(pod.Finalizers, ", ")
		}
		return s
	}
	since := "since " + pod.DeletionTimestamp.UTC().Format(time.RFC3339)
	runs, err := cri.PodRuns(ctx, i.Runtime, string(pod.UID))
	if err == nil && runs != "" {
		remains.Waiting, err = killedAndWaiting(string(pod.UID))
		i.nameContainers(ctx, string(pod.UID), remains.Waiting)
	}
	switch {
	case err != nil:
		remains.RunsUnknown = err.Error()
		s.Text += fmt.Sprintf(" %s, and it is not known whether a container of it still runs: %v; still there: %s", since, err, remains.describe())
	case len(remains.Waiting) > 0:
		s.Text += fmt.Sprintf(" %s, and it cannot end: %s", since, remains.Waiting[0])
	case runs != "":
		s.Text += fmt.Sprintf(" %s, and it still runs: %s", since, runs)
		return s
	case !mountstate.TimeIsOver(pod, cri.LastEnd(ctx, i.Runtime, string(pod.UID)), now):
		s.Text += ", and the kubelet is taking it down"
		return s
	default:
		remains.Over = true
		i.addUsers(ctx, remains, searches)
		s.Text += fmt.Sprintf(" %s, and its last container has ended, but this is still there: %s", since, remains.describe())
	}
	remains.Pod, remains.Text, s.Remains = podinfo.PodOf(pod), s.Text, remains
	return s
}

// Each search for users looks into every process of the node.
const (
	maxSearches      = 16 // in one look
	maxSearchesOfPod = 2
)

// addUsers finds the users of the mounts of a pod, where nothing else explains that the kubelet cannot unmount them. searches is how many more
// searches this look may make.
func (i *Inspector) addUsers(ctx context.Context, r *Remains, searches *int) {
	own := maxSearchesOfPod
	for n := range r.Places {
		p := &r.Places[n]
		if reason, _ := p.judge(); i.Users == nil || p.Kind == Directory || reason != "" {
			continue
		}
		if own == 0 || *searches == 0 {
			r.UsersUnknown = fmt.Sprintf("no user was looked for of the mount at %q and of later ones", p.Mount.Point)
			return
		}
		own, *searches = own-1, *searches-1
		users, err := i.Users(ctx, p.found)
		if p.Users = users[:min(len(users), maxUsers)]; err != nil {
			r.UsersUnknown = err.Error()
		}
	}
}

// nameContainers puts the names of the pod's containers in the place of the container runtime's IDs, as far as that knows them.
func (i *Inspector) nameContainers(ctx context.Context, podUID string, all []Process) {
	if i.Runtime == nil || len(all) == 0 {
		return
	}
	records, _ := i.Runtime.PodRecords(ctx, podUID) // none: the IDs stay
	for n := range all {
		for _, r := range records {
			if r.ID == all[n].Container {
				all[n].Container = r.Name
			}
		}
	}
}
