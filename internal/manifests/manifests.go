// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests splits manifests into documents, and reads those that are part of a program.
package manifests

import (
	"fmt"
	"io/fs"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Read returns the objects of one kind, in the order of the files. An object in several files comes once.
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
		for document, err := range Documents(text) {
			var of metav1.TypeMeta
			var object T
			if err == nil {
				err = yaml.Unmarshal(document.Text, &of)
			}
			if err != nil {
				return nil, fmt.Errorf("read manifest %q: %w", name, err)
			}
			if of.Kind != kind {
				continue
			}
			if err := yaml.Unmarshal(document.Text, &object); err != nil {
				return nil, fmt.Errorf("read manifest %q: %w", name, err)
			}
			if !slices.ContainsFunc(all, func(other T) bool { return reflect.DeepEqual(other, object) }) {
				all = append(all, object)
			}
		}
	}
	return all, nil
}
