// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests reads the manifests that are part of a program.
package manifests

import (
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var documentEnd = regexp.MustCompile(`(?m)^---\s*$`)

// Read returns the objects of one kind, in the order of the files. One that is in several files comes once.
func Read[T any](files fs.FS, kind string) (all []T, err error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		for _, document := range documentEnd.Split(string(text), -1) {
			var of metav1.TypeMeta
			var object T
			if err := yaml.Unmarshal([]byte(document), &of); err != nil {
				return nil, fmt.Errorf("read manifest %q: %w", name, err)
			}
			if of.Kind != kind {
				continue
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				return nil, fmt.Errorf("read manifest %q: %w", name, err)
			}
			if !slices.ContainsFunc(all, func(other T) bool { return reflect.DeepEqual(other, object) }) {
				all = append(all, object)
			}
		}
	}
	return all, nil
}
