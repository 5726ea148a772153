// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

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

// HasTemplate reports whether objects of a kind have a template of pods, or are a pod.
func HasTemplate(kind string) bool { return templates[kind] != nil }

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
