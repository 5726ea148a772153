// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"

	"sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/manifests"
)

// maxManifest bounds a manifest, in bytes.
const maxManifest = 4 << 20

// Load takes in every object of a manifest of one or more YAML documents. A field that the kind does not have is an
// error that names it. The objects before the error have been taken in.
func (m *Memory) Load(manifest io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(manifest, maxManifest))
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	for document, err := range manifests.Documents(text) {
		if err == nil {
			err = m.load(document.Text)
		}
		if err != nil {
			return fmt.Errorf("read manifest, document %d: %w", document.Number, err)
		}
	}
	return nil
}

func (m *Memory) load(document []byte) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	// As strict as an API server can be: no field that the kind does not have, and none twice. The errors name the fields in full.
	text, errStrict := sigsyaml.YAMLToJSONStrict(document)
	if errStrict != nil || stdjson.Unmarshal(text, &head) != nil { // a wrong kind is said first
		if err := sigsyaml.Unmarshal(document, &head); err != nil {
			return err
		}
	}
	if head.APIVersion != v1.GroupVersion.String() {
		return fmt.Errorf("apiVersion: %q: must be %q", head.APIVersion, v1.GroupVersion.String())
	}
	var object any
	switch head.Kind {
	case "Operation":
		object = &v1.Operation{}
	case "OperationSet":
		object = &v1.OperationSet{}
	case "Diagnosis":
		object = &v1.Diagnosis{}
	default:
		return fmt.Errorf("kind: %q: must be Operation, OperationSet or Diagnosis", head.Kind)
	}
	err := errStrict
	if err == nil {
		var unknown []error
		unknown, err = json.UnmarshalStrict(text, object)
		err = errors.Join(append([]error{err}, unknown...)...)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", head.Kind, err)
	}
	return m.Add(object)
}

// YAML returns an object as kubectl get -o yaml would.
func YAML(object any) ([]byte, error) {
	b, err := sigsyaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("write yaml: %w", err)
	}
	return b, nil
}
