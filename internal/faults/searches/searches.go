// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package searches is the one list of all that is looked for on a node. A search that is added here is made by scan, and
// goes into bundles and out of them again.
//
// A row makes no decision: each family of faults judges what it has found. A row says how the family is asked about the
// node that it runs on, and how it judges again the evidence that a bundle has of another one.
package searches

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/links"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Node answers a search.
type Node struct {
	// Kubelet gives paths alone where evidence is judged.
	Kubelet *kubelet.Node
	// Specs are the pods whose specs are known; nil: there are none.
	Specs Specs
	// PodUIDs lists the pods of which the kubelet has a directory.
	PodUIDs func(ctx context.Context) ([]string, error)
	// Prober asks file systems that may hang.
	Prober faults.Prober
	// Runtime is the container runtime, as all but devices ask it.
	Runtime Runtime
	// Devices looks at devices.
	Devices *device.Inspector
	// ClaimPaths reads where the claims of pods lie; nil: that is not known.
	ClaimPaths subpath.ClaimPaths
	// Attachments reads which volumes are attached to the node; nil: that is not known.
	Attachments nodemount.Attachments
	// OrphanAge is for how long the directory of a pod must be unchanged.
	OrphanAge time.Duration
}

// Specs are those of pods.
type Specs interface {
	kubelet.PodCache
	orphan.Pods
	// Listed are all of them.
	Listed() []*corev1.Pod
}

// Runtime is a container runtime.
type Runtime interface {
	volume.Runtime
	orphan.Runtime
	links.Runtime
}

// podByUID is the pod with that UID; nil if it is not known.
func (n Node) podByUID(uid string) *corev1.Pod {
	if n.Specs == nil {
		return nil
	}
	return n.Specs.PodByUID(uid)
}

// Search is one row of the list.
type Search struct {
	// Kind is that of the faults that it finds; empty: it finds none, only unknown parts.
	Kind fault.Search
	// Description names for people the subject of the search.
	Description string
	// Entry is the name of the evidence in a bundle. Content describes it for people.
	Entry, Content string
	// Every is how often an agent makes the search; 0: not from time to time.
	Every time.Duration
	// About says if such a search is about a pod of the node; nil: it is about all of them.
	About func(*corev1.Pod) bool

	ask  func(ctx context.Context, n Node, s mountstate.Scope) (mountstate.Survey, error)
	read func(content []byte) (judge, error)
}

// judge judges evidence again.
type judge func(ctx context.Context, n Node) (mountstate.Survey, error)

// On makes the search of a node that is asked.
func (s Search) On(n Node) mountstate.Inspector { return asker{s, n} }

type asker struct {
	search Search
	node   Node
}

// Look asks the node.
func (a asker) Look(ctx context.Context, s mountstate.Scope) (mountstate.Survey, error) {
	return a.search.ask(ctx, a.node, s)
}

// Read makes the search of a node whose evidence is JSON.
func (s Search) Read(content []byte, n Node) (mountstate.Inspector, error) {
	j, err := s.read(content)
	return reader{j, n}, err
}

type reader struct {
	judge judge
	node  Node
}

// Look judges the evidence again, all of it.
func (r reader) Look(ctx context.Context, _ mountstate.Scope) (mountstate.Survey, error) {
	return r.judge(ctx, r.node)
}

// read is Search.read for evidence of a type.
func read[E any](again func(ctx context.Context, n Node, e *E) (mountstate.Survey, error)) func([]byte) (judge, error) {
	return func(content []byte) (judge, error) {
		e := new(E)
		if err := json.Unmarshal(content, e); err != nil {
			return nil, err
		}
		return func(ctx context.Context, n Node) (mountstate.Survey, error) { return again(ctx, n, e) }, nil
	}
}

// All lists every search, in the order in which they are made. The caller owns the slice.
func All() []Search { return slices.Clone(all) }

var all = []Search{
	{
		Kind: fault.SearchSubPaths, Description: "subPath binds", Entry: "evidence/subpaths.json", Content: "evidence on subPath binds",
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			s, err := subpath.Scan(ctx, n.Kubelet, subpath.Sources{Prober: n.Prober, Runtime: n.Runtime}, n.podByUID)
			if err != nil {
				return mountstate.Survey{}, err
			}
			return s.Summary(), nil
		},
		read: read(func(_ context.Context, n Node, e *subpath.Evidence) (mountstate.Survey, error) {
			return e.Judge(n.podByUID).Summary(), nil
		}),
	},
	{
		Kind: fault.SearchSources, Description: "sources of hostPath volumes", Entry: "evidence/sources.json", Content: "lookups of the sources of volumes",
		Every: time.Minute, About: func(pod *corev1.Pod) bool { return len(podinfo.Unstarted(pod, "")) > 0 }, // all others have got their sources
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			lookups := &subpath.Lookups{}
			sum, err := lookUpSources(ctx, n, func(pods []*corev1.Pod) ([]fault.Finding, error) {
				return lookups.Ask(ctx, n.Kubelet, pods, n.ClaimPaths)
			})
			sum.Evidence = func() any { return lookups }
			return sum, err
		},
		read: read(func(ctx context.Context, n Node, e *subpath.Lookups) (mountstate.Survey, error) {
			return lookUpSources(ctx, n, func(pods []*corev1.Pod) (found []fault.Finding, err error) {
				for _, pod := range pods {
					found = append(found, e.Judge(n.Kubelet, pod)...)
				}
				return found, nil
			})
		}),
	},
	{
		Kind: fault.SearchDevices, Description: "devices", Entry: "evidence/devices.json",
		Content: "evidence on devices that are mounted in other namespaces alone",
		Every:   5 * time.Minute, // it reads all mount namespaces
		About:   func(pod *corev1.Pod) bool { return len(podinfo.Unstarted(pod, "")) > 0 },
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			usages, evidence, err := n.Devices.FindAbandonedWithEvidence(ctx)
			sum := device.Summarize(usages)
			sum.Evidence = func() any { return evidence }
			return sum, err
		},
		read: read(func(ctx context.Context, n Node, e *device.Evidence) (mountstate.Survey, error) {
			usages, err := e.Judge(ctx, n.Kubelet)
			return device.Summarize(usages), err
		}),
	},
	{
		Kind: fault.SearchVolumes, Description: "volumes", Entry: "evidence/volumes.json", Content: "answers of the mounts of volumes",
		ask: func(ctx context.Context, n Node, s mountstate.Scope) (mountstate.Survey, error) {
			i := &volume.Inspector{Kubelet: n.Kubelet, Prober: n.Prober, Runtime: n.Runtime}
			if n.Specs != nil {
				i.Pods = n.Specs
			}
			survey, err := i.Inspect(ctx, s)
			if err != nil {
				return mountstate.Survey{}, err
			}
			return survey.Summary(), nil
		},
		read: read(func(_ context.Context, n Node, e *volume.Recording) (mountstate.Survey, error) {
			return e.Judge(n.podByUID).Summary(), nil
		}),
	},
	{
		Kind: fault.SearchOrphans, Description: "directories of pods that are gone", Entry: "evidence/orphans.json",
		Content: "directories of pods that no source knows",
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			i := &orphan.Inspector{Kubelet: n.Kubelet, Runtime: n.Runtime, MinimumAge: n.OrphanAge}
			if n.Specs != nil {
				i.Pods = n.Specs
			}
			s, err := i.Survey(ctx)
			if err != nil {
				return mountstate.Survey{}, err
			}
			return s.Summary(), nil
		},
		read: read(func(_ context.Context, _ Node, e *orphan.Evidence) (mountstate.Survey, error) {
			return e.Judge().Summary(), nil
		}),
	},
	{
		Kind: fault.SearchStacks, Description: "mounts that are one too many", Entry: "evidence/stacks.json", Content: "stacked mounts, and staging paths of no pod",
		Every: 5 * time.Minute,
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			i := &nodemount.Inspector{Kubelet: n.Kubelet, Attachments: n.Attachments}
			if n.Specs != nil {
				i.Pods = n.Specs.Listed
			}
			e, err := i.Look(ctx)
			if err != nil {
				return mountstate.Survey{}, err
			}
			return e.Judge(&n.Kubelet.Layout, n.podByUID), nil
		},
		read: read(func(_ context.Context, n Node, e *nodemount.Evidence) (mountstate.Survey, error) {
			return e.Judge(&n.Kubelet.Layout, n.podByUID), nil
		}),
	},
	{
		Kind: fault.SearchLeaving, Description: "pods that are being deleted", Entry: "evidence/leaving.json", Content: "pods whose time is over and of which something is left",
		Every: 30 * time.Second, About: func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil },
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			var pods []*corev1.Pod
			if n.Specs != nil {
				pods = n.Specs.Listed()
			}
			return (&leaving.Inspector{Kubelet: n.Kubelet, Runtime: n.Runtime, Users: UsersBy(n.Devices)}).Look(ctx, pods...)
		},
		read: read(func(_ context.Context, _ Node, e *[]leaving.Remains) (mountstate.Survey, error) {
			return leaving.Summarize(*e), nil
		}),
	},
	{
		Description: "mounts that no pod wants, and volumes that are not there", Entry: "evidence/mounts.json", Content: "mounts of the kubelet, and the links that pods want",
		ask: func(ctx context.Context, n Node, _ mountstate.Scope) (mountstate.Survey, error) {
			i := &links.Inspector{Kubelet: n.Kubelet, Runtime: n.Runtime}
			if n.Specs != nil {
				i.Pods = n.Specs.Listed
			}
			return i.Look(ctx, mountstate.Scope{})
		},
		read: read(func(_ context.Context, n Node, e *mountstate.Facts) (mountstate.Survey, error) {
			return e.Survey(&n.Kubelet.Layout), nil
		}),
	},
}

// Look makes all searches of a node that is asked, one after the other. It counts all that it could not judge, as a scan does. An error of one ends it: then the rest is not known.
func Look(ctx context.Context, n Node) (sum mountstate.Survey, err error) {
	for _, s := range all {
		found, err := s.On(n).Look(ctx, mountstate.Scope{})
		if err != nil {
			return sum, fmt.Errorf("search for %s: %w", s.Description, err)
		}
		sum.Merge(found)
	}
	sum.Attribute()
	AddUncounted(&sum)
	return sum, nil
}

// maxSourceContainers is how many containers a pod may have whose sources are looked for. For each of them the whole pod is read.
const maxSourceContainers = 64

// lookUpSources looks for the sources that containers which are not started mount and cannot get, or have the wrong
// content. Only the specs of pods say which those are.
func lookUpSources(ctx context.Context, n Node, lookUp func([]*corev1.Pod) ([]fault.Finding, error)) (sum mountstate.Survey, err error) {
	uids, err := n.PodUIDs(ctx)
	if err != nil || n.Specs == nil {
		return sum, err
	}
	onNode := map[string]bool{}
	for _, uid := range uids {
		onNode[uid] = true
	}
	here := slices.DeleteFunc(n.Specs.Listed(), func(pod *corev1.Pod) bool { return !onNode[string(pod.UID)] })
	slices.SortFunc(here, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	var pods []*corev1.Pod
	for _, pod := range here {
		if many := len(podinfo.ContainerNames(pod)); many > maxSourceContainers {
			sum.Unknown.AddGap("sources of the volumes of pod "+pod.Namespace+"/"+pod.Name,
				fmt.Sprintf("it has %d containers, and at most %d are looked at", many, maxSourceContainers))
			continue
		}
		pods = append(pods, pod)
	}
	sum.Findings, err = lookUp(pods)
	return sum, err
}
