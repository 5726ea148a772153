// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

// addKrew adds the manifest of the plugin for an index of krew, see krew.sigs.k8s.io/docs/developer-guide/plugin-manifest.
func (r *release) addKrew() error {
	if r.repoURL == "" {
		return nil
	}
	var ways []map[string]any
	for _, p := range platforms {
		i := slices.IndexFunc(r.files, func(f file) bool { return f.name == p.archive() })
		if i < 0 {
			return fmt.Errorf("no archive %q for the krew manifest", p.archive())
		}
		ways = append(ways, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": p.system, "arch": p.arch}},
			"uri":      fmt.Sprintf("%s/releases/download/%s/%s", r.repoURL, r.version, p.archive()),
			"sha256":   fmt.Sprintf("%x", sha256.Sum256(r.files[i].content)),
			"bin":      p.program(),
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]string{"name": "kubediag"},
		"spec": map[string]any{
			"version": r.version, "homepage": r.repoURL, "platforms": ways,
			"shortDescription": "Find and heal the broken mounts that keep pods from running",
			"description": "Shows which pods cannot start, run or go away because of a mount on their node, proves the cause,\n" +
				"and heals it without a restart where that is safe. Needs kubediag in the cluster.\n",
		},
	})
	if err != nil {
		return err
	}
	r.add("kubediag.yaml", text)
	return nil
}
