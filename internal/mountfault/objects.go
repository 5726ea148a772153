// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/redact"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/internal/share"
)

// objectBuilder makes the objects that show the faults of a node: one for each of the worst, and one that counts all others.
type objectBuilder struct {
	*Options
	entries entrySet // know the faults from earlier
	// olderAPI is whether the API server has been seen not to know ImpactTerminating.
	olderAPI bool
}

// candidate is an object that there may be, without its texts: there can be very many faults, and few of them have an
// object.
type candidate struct {
	fault  *v1.MountFault
	pod    *corev1.Pod // nil for a fault of the node
	first  *sentinel.Fault
	advice fault.Advice // on the first
	mounts int
	keeps  *entry // of an object whose fault is not known yet; nil for a fault that is there
}

// candidates returns an object for every fault, by name. A fault of a pod that is gone has none.
func (b *objectBuilder) candidates(present []*sentinel.Fault) map[types.NamespacedName]*candidate {
	groups := map[fault.Key][]*sentinel.Fault{}
	for _, f := range present {
		s := f.Key().Subject()
		s.Place = cmp.Or(f.Details.Device, f.Details.Path) // each is a subject
		groups[s] = append(groups[s], f)
	}
	found := map[types.NamespacedName]*candidate{}
	for s, group := range groups {
		var pod *corev1.Pod
		if d := group[0].Details; d.Path == "" && d.Device == "" {
			if pod = b.Pods.PodByUID(group[0].Pod.UID); pod == nil {
				continue
			}
		}
		c := b.candidate(s, group, pod)
		name := client.ObjectKeyFromObject(c.fault)
		if e := b.entries[name]; e != nil {
			e.remember(c.fault)
		}
		found[name] = c
	}
	return found
}

// candidate returns the object for the faults of one subject.
func (b *objectBuilder) candidate(s fault.Key, group []*sentinel.Fault, pod *corev1.Pod) *candidate {
	slices.SortFunc(group, func(a, b *sentinel.Fault) int { // the volume's own mount first
		return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Mount.Point, b.Mount.Point), cmp.Compare(a.Mount.ID, b.Mount.ID))
	})
	first, since := group[0], time.Now()
	findings := make([]fault.Finding, len(group))
	for i, f := range group {
		findings[i] = f.Finding
		if !f.Since.IsZero() && f.Since.Before(since) {
			since = f.Since
		}
	}
	var recovery *v1.FaultRecovery // by RecoveryPolicies
	if b.Recovery != nil {
		recovery = b.Recovery(findings, pod)
	}
	automatic := recovery != nil && recovery.Mode == v1.RecoveryAutomatic
	advice := advise(first, automatic)
	impact, heal := slices.Index(fault.Impacts(), advice.Impact), slices.Index(fault.Heals(), advice.Heal)
	for _, f := range group[1:] { // the worst of all
		a := advise(f, automatic)
		impact, heal = min(impact, slices.Index(fault.Impacts(), a.Impact)), max(heal, slices.Index(fault.Heals(), a.Heal))
	}
	d := first.Details
	shown := v1.FaultImpact(fault.Impacts()[impact])
	if b.olderAPI && shown == v1.ImpactTerminating {
		shown = v1.ImpactCleanup
	}
	mountFault := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: string(s.Code), Node: b.Node, Volume: first.Volume, Driver: d.Driver, Device: cmp.Or(d.Device, first.Mount.Device),
		Impact: shown, Heal: v1.FaultHeal(fault.Heals()[heal]), Recovery: recovery,
		Since: metav1.NewTime(since.Truncate(time.Second)),
	}}
	if pod != nil && !slices.ContainsFunc(group, func(f *sentinel.Fault) bool { return f.Container != first.Container }) {
		mountFault.Status.Container = first.Container
	}
	if p := cmp.Or(d.HeldBy, d.Daemon); p != nil {
		mountFault.Status.Holder = p.String()
	}
	b.place(mountFault, pod, s, first)
	return &candidate{fault: mountFault, pod: pod, first: first, advice: advice, mounts: len(group)}
}

func advise(f *sentinel.Fault, automatic bool) fault.Advice {
	return fault.Known().Advise(f.Finding, fault.Caller{Automatic: automatic, Enter: f.Enter})
}

// object writes the texts of a candidate.
func (c *candidate) object(u underway) *v1.MountFault {
	s := &c.fault.Status
	s.LastSeen = metav1.NewTime(time.Now().Truncate(time.Second))
	s.Diagnosis = u[types.NamespacedName{}]
	if c.pod != nil {
		s.Diagnosis = cmp.Or(u[client.ObjectKeyFromObject(c.pod)], s.Diagnosis)
	}
	s.Summary = summary(s, c.advice.Summary)
	s.Plan = c.advice.Plan
	s.Commands = commands(c.advice)
	if c.mounts > 1 {
		s.Evidence = append(s.Evidence, fmt.Sprintf("mounts with this fault: %d", c.mounts))
	}
	for _, fact := range c.first.Evidence[:min(len(c.first.Evidence), v1.MaxFaultEvidence-len(s.Evidence))] {
		s.Evidence = append(s.Evidence, redact.Text(fact))
	}
	printable.Fields(s)
	for _, text := range []*string{&s.Target, &s.Container, &s.Volume, &s.Driver} { // to the bounds of the schema
		*text = printable.Clip(*text, v1.MaxFaultName)
	}
	s.Device = printable.Clip(s.Device, v1.MaxFaultDevice)
	s.Plan = printable.ClipMiddle(s.Plan, v1.MaxFaultPlan)
	s.Holder = printable.Clip(s.Holder, v1.MaxFaultFact)
	if s.Recovery != nil {
		s.Recovery.Message = printable.ClipMiddle(s.Recovery.Message, v1.MaxFaultFact)
		s.Recovery.EvictionRefusal = printable.Clip(s.Recovery.EvictionRefusal, v1.MaxFaultFact)
	}
	for i := range s.Evidence {
		s.Evidence[i] = printable.Clip(s.Evidence[i], v1.MaxFaultFact)
	}
	return c.fault
}

// place gives an object its name, its namespace and its owner. The name is made of the same parts as in older releases, so that an
// object has its name after an upgrade: the volume as people call it, and the directory of a pod that is gone. A held device belongs to
// no pod: the pod that holds it is not hurt by it.
func (b *objectBuilder) place(mountFault *v1.MountFault, pod *corev1.Pod, s fault.Key, first *sentinel.Fault) {
	base, volume, target := b.Node, "", cmp.Or(first.Details.Path, first.Details.Device)
	mountFault.Namespace, mountFault.Status.Target = b.Namespace, target
	if pod != nil {
		base, volume = pod.Name, first.Volume
		mountFault.Namespace, mountFault.Status.Target = pod.Namespace, pod.Name
		mountFault.Status.Pod = &v1.FaultPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		mountFault.Status.Workload = workloadOf(pod)
		mountFault.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{b.Node, string(s.Code), s.PodUID, s.Container, volume, target}, "\x00")))
	mountFault.Name = nameOf(base, hex.EncodeToString(sum[:5]))
	mountFault.Labels = map[string]string{v1.LabelNode: v1.NodeLabelValue(b.Node)}
}

// maxBase leaves room in a name for the part that makes it unique.
const maxBase = 240

func nameOf(base, suffix string) string {
	return strings.TrimRight(base[:min(len(base), maxBase)], "-.") + "-" + suffix
}

// workloadOf is the controller of a pod. A ReplicaSet whose name ends with the hash of the pod template is a
// Deployment's.
func workloadOf(pod *corev1.Pod) *v1.Workload {
	of := kubelet.WorkloadOf(pod)
	if of == (fault.Workload{}) {
		return nil
	}
	hash := pod.Labels["pod-template-hash"]
	if name, ok := strings.CutSuffix(of.Name, "-"+hash); ok && of.Kind == "ReplicaSet" && hash != "" {
		of = fault.Workload{Kind: "Deployment", Name: name}
	}
	return &v1.Workload{Kind: of.Kind, Name: of.Name}
}

// choose returns at most so many of the objects, and one that counts all others. Namespaces take turns, and in each of them its
// pods, with the worst fault and then the oldest. Objects whose fault is not known yet take part: they are chosen or not.
func (b *objectBuilder) choose(found map[types.NamespacedName]*candidate, kept []*entry, most int, u underway) []*v1.MountFault {
	all := slices.Collect(maps.Values(found))
	for _, e := range kept {
		all = append(all, &candidate{fault: e.written, keeps: e})
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(impactRank(a.fault), impactRank(b.fault)), a.fault.Status.Since.Compare(b.fault.Status.Since.Time),
			compareNames(client.ObjectKeyFromObject(a.fault), client.ObjectKeyFromObject(b.fault)))
	})
	turns := share.InTurns(all, func(c *candidate) share.Owner {
		if p := c.fault.Status.Pod; p != nil {
			return share.Owner{Namespace: p.Namespace, Pod: string(p.UID)}
		}
		return share.Owner{}
	})
	var chosen []*v1.MountFault
	listed := map[*candidate]bool{}
	for _, c := range turns[:min(len(turns), most)] {
		listed[c] = true
		if c.keeps != nil {
			c.keeps.kept = true
			continue
		}
		chosen = append(chosen, c.object(u))
	}
	rest := slices.DeleteFunc(all, func(c *candidate) bool { return listed[c] || c.keeps != nil })
	if len(rest) > 0 {
		chosen = append(chosen, b.unlisted(rest))
	}
	return chosen
}

// unlistedName names the object that counts the faults without one.
func (b *objectBuilder) unlistedName() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: nameOf(b.Node, "unlisted")}
}

// unlisted counts the faults that have no object. The first is the worst.
func (b *objectBuilder) unlisted(rest []*candidate) *v1.MountFault {
	counts, heal := map[string]int{}, 0
	since := rest[0].fault.Status.Since
	for _, f := range rest {
		counts[f.fault.Status.Code]++
		heal = max(heal, slices.Index(fault.Heals(), fault.Heal(f.fault.Status.Heal)))
		if f.fault.Status.Since.Before(&since) {
			since = f.fault.Status.Since
		}
	}
	name := b.unlistedName()
	mountFault := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: v1.UnlistedFaults, Target: b.Node, Node: b.Node, Impact: rest[0].fault.Status.Impact, Heal: v1.FaultHeal(fault.Heals()[heal]),
		Since: since, LastSeen: metav1.NewTime(time.Now().Truncate(time.Second)), Unlisted: int32(len(rest)),
		Plan: "repair the faults that are listed; others take their place in the list",
	}}
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		mountFault.Status.Evidence = append(mountFault.Status.Evidence, fmt.Sprintf("%s: %d", code, counts[code]))
	}
	mountFault.Status.Evidence = mountFault.Status.Evidence[:min(len(mountFault.Status.Evidence), v1.MaxFaultEvidence)]
	mountFault.Namespace, mountFault.Name = name.Namespace, name.Name
	mountFault.Labels = map[string]string{v1.LabelNode: v1.NodeLabelValue(b.Node)}
	b.entries.of(name).remember(mountFault)
	mountFault.Status.Summary = fmt.Sprintf("%d more faults of the node have no object of their own", len(rest))
	return mountFault
}

func impactRank(f *v1.MountFault) int {
	return slices.Index(fault.Impacts(), fault.Impact(f.Status.Impact))
}

func compareNames(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
