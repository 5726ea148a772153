// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package lint finds workloads whose pods are at risk of a mount fault, from their templates alone, and writes down the
// change that cures each. It reads no cluster and no node, so it cannot know the content of a directory of an image.
//
// It rests on the kubelet's habits (package faults/subpath) and on mount_namespaces(7): a container without mount
// propagation keeps its copy of every mount that was there when it started.
package lint

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/fault"
)

// Rule is the name of a risk.
type Rule string

// Rules.
const (
	// MutableSubPath: a container mounts a subPath of content that the kubelet replaces, on a kubelet with
	// kubernetes#68211.
	MutableSubPath Rule = "MutableSubPath"
	// HostPropagation: a container mounts a directory of the host in which the kubelet mounts volumes, and does not
	// follow unmounts there.
	HostPropagation Rule = "HostPropagation"
	// FUSEPropagation: a container uses a file system that another container mounts, and does not follow its daemon's
	// restart.
	FUSEPropagation Rule = "FUSEPropagation"
	// ReadOnlyMountPoint: a container mounts something below a volume that is mounted read-only and has no such directory.
	ReadOnlyMountPoint Rule = "ReadOnlyMountPoint"
	// SingleFile: a container mounts one file or socket of the host, and does not see that another takes its place.
	SingleFile Rule = "SingleFile"
	// MountInside: the runtime mounts something inside a volume whose mounts spread to the host.
	MountInside Rule = "MountInside"
)

// becomes has the faults that risks become. The catalogue has none for the others.
var becomes = map[Rule]fault.Code{MutableSubPath: fault.StaleSubPath, HostPropagation: fault.HeldDevice, FUSEPropagation: fault.DisconnectedFUSE, MountInside: fault.StuckTermination}

// Finding is one risk of one container.
type Finding struct {
	Rule Rule `json:"rule"`
	// Code is the fault that the risk becomes; empty: the catalogue has none.
	Code      fault.Code `json:"code,omitempty"`
	Kind      string     `json:"kind"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	Container string     `json:"container"`
	// Mounts are the volumeMounts at risk that one change cures.
	Mounts []Mount `json:"mounts"`
	// Summary is the problem in one sentence.
	Summary string `json:"summary"`
	// Cure is the change to make in one or two sentences, and the check before it.
	Cure string `json:"cure"`
	// Patch is the change as a strategic merge patch of the object, in YAML. It is empty if the template does not say
	// enough for one.
	Patch string `json:"patch,omitempty"`
}

// Mount is one volumeMount of a container.
type Mount struct {
	// Field is its place in the object, such as spec.template.spec.containers[0].volumeMounts[1].
	Field     string `json:"field"`
	Volume    string `json:"volume"`
	MountPath string `json:"mountPath"`
	// SubPath is empty if the whole volume is mounted; it is the expression if there is one.
	SubPath string `json:"subPath,omitempty"`
}

// Options narrow and widen a check. The zero value is ready for use.
type Options struct {
	// KubeletVersion is the version of the nodes' kubelets; nil: not known, and the oldest is assumed.
	KubeletVersion *version.Version
	// KubeletRoot is the kubelets' root directory; empty: /var/lib/kubelet.
	KubeletRoot string
	// MountDirs are directories of the host in which containers of other workloads mount file systems, see MountDirs.
	MountDirs HostDirs
	// Immutable reports whether a ConfigMap or Secret never changes. It is called only for those that are mounted with a
	// subPath. nil: all may change.
	Immutable func(Content) bool
}

// Content names a ConfigMap or a Secret.
type Content struct{ Kind, Namespace, Name string }

// RenewsSubPaths is the first version whose kubelet compares a subPath bind with its source and renews it.
var RenewsSubPaths = version.MustParseGeneric("1.19.0")

// Check returns the risks of the pods of one workload. kind decides where in the object their spec is.
func Check(kind, namespace, name string, spec *corev1.PodSpec, options Options) []Finding {
	options.KubeletRoot = path.Clean(cmp.Or(options.KubeletRoot, "/var/lib/kubelet"))
	c := check{kind: kind, namespace: namespace, options: options, spec: spec,
		volumes: map[string]corev1.Volume{}, taken: map[string]bool{}}
	for _, v := range spec.Volumes {
		c.volumes[v.Name], c.taken[v.Name] = v, true
	}
	c.mounters = map[string][]string{}
	for _, of := range c.containers() {
		for _, m := range of.mounts {
			if fills(c.volumes[m.Name], m) {
				c.mounters[m.Name] = append(c.mounters[m.Name], of.name)
			}
		}
	}
	var all []Finding
	for _, of := range c.containers() {
		if options.KubeletVersion == nil || options.KubeletVersion.LessThan(RenewsSubPaths) {
			all = append(all, c.mutableSubPaths(of)...)
		}
		all = slices.Concat(all, c.propagation(of), c.readOnlyMountPoints(of), c.singleFiles(of), c.mountsInside(of))
	}
	for i := range all {
		all[i].Kind, all[i].Namespace, all[i].Name, all[i].Code = kind, namespace, name, becomes[all[i].Rule]
	}
	return all
}

// check is one check of one template.
type check struct {
	kind, namespace string

	options Options
	spec    *corev1.PodSpec
	volumes map[string]corev1.Volume
	// mounters are the containers of this pod that mount into a volume for others, by the volume's name.
	mounters map[string][]string
	taken    map[string]bool // names of volumes, those that patches add included
}

// container has the fields that a regular and an init container have in common. Ephemeral containers are in no template.
type container struct {
	list   string
	index  int
	name   string
	mounts []corev1.VolumeMount
	// terminationLog is the path of its termination log; empty: the default.
	terminationLog string
}

func (c *check) containers() []container {
	var all []container
	for i, of := range c.spec.InitContainers {
		all = append(all, container{"initContainers", i, of.Name, of.VolumeMounts, of.TerminationMessagePath})
	}
	for i, of := range c.spec.Containers {
		all = append(all, container{"containers", i, of.Name, of.VolumeMounts, of.TerminationMessagePath})
	}
	return all
}

// mount writes a volumeMount down.
func (c *check) mount(of container, index int) Mount {
	m := of.mounts[index]
	return Mount{
		Field:  fmt.Sprintf("%s.%s[%d].volumeMounts[%d]", specField(c.kind), of.list, of.index, index),
		Volume: m.Name, MountPath: m.MountPath, SubPath: cmp.Or(m.SubPathExpr, m.SubPath),
	}
}

// spreads reports whether the host sees the mounts of the container below it.
func spreads(m corev1.VolumeMount) bool {
	return m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional
}

// templates are the ways from an object to the spec of its pods, by kind.
var templates = map[string][]string{
	"Pod":                   {"spec"},
	"PodTemplate":           {"template", "spec"},
	"Deployment":            {"spec", "template", "spec"},
	"StatefulSet":           {"spec", "template", "spec"},
	"DaemonSet":             {"spec", "template", "spec"},
	"ReplicaSet":            {"spec", "template", "spec"},
	"ReplicationController": {"spec", "template", "spec"},
	"Job":                   {"spec", "template", "spec"},
	"CronJob":               {"spec", "jobTemplate", "spec", "template", "spec"},
}

// specField is the way to the pod's spec in an object of that kind; that of a Pod for any other.
func specField(kind string) string {
	if way := templates[kind]; way != nil {
		return strings.Join(way, ".")
	}
	return "spec"
}

// patch writes a strategic merge patch of a pod's spec for an object of that kind.
func patch(kind string, spec map[string]any) string {
	for _, name := range slices.Backward(strings.Split(specField(kind), ".")) {
		spec = map[string]any{name: spec}
	}
	text, err := yaml.Marshal(spec)
	if err != nil {
		return "" // maps, lists and texts can be written
	}
	return string(text)
}
