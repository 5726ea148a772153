// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package shipped

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
)

// object is an Operation or an OperationSet.
type object struct{ client.Object }

func (o object) kind() string {
	if _, ok := o.Object.(*v1.Operation); ok {
		return "Operation"
	}
	return "OperationSet"
}

// empty is a new object of the same kind.
func (o object) empty() client.Object {
	if _, ok := o.Object.(*v1.Operation); ok {
		return &v1.Operation{}
	}
	return &v1.OperationSet{}
}

func (o object) copy() object { return object{o.DeepCopyObject().(client.Object)} }

// spec is the spec, as a pointer into the object.
func (o object) spec() any {
	if op, ok := o.Object.(*v1.Operation); ok {
		return &op.Spec
	}
	return &o.Object.(*v1.OperationSet).Spec
}

// take copies the spec of another object of the same kind.
func (o object) take(from object) {
	switch from := from.copy().Object.(type) {
	case *v1.Operation:
		o.Object.(*v1.Operation).Spec = from.Spec
	case *v1.OperationSet:
		o.Object.(*v1.OperationSet).Spec = from.Spec
	}
}

// hash is that of the spec.
func (o object) hash() (string, error) {
	text, err := json.Marshal(o.spec())
	if err != nil {
		return "", fmt.Errorf("encode spec: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// mark writes down what was written, and by which release.
func (o object) mark(version string) error {
	hash, err := o.hash()
	if err != nil {
		return err
	}
	labels, annotations := maps.Clone(o.GetLabels()), maps.Clone(o.GetAnnotations())
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(labels, v1.LabelVersion)
	if len(validation.IsValidLabelValue(version)) == 0 {
		labels[v1.LabelVersion] = version
	}
	annotations[v1.AnnotationSpecHash] = hash
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return nil
}

// users reports whether the object is a user's: it was never ours, a user has changed it, or a user says so.
func (o object) users(want object) (bool, error) {
	written, marked := o.GetAnnotations()[v1.AnnotationSpecHash]
	switch {
	case o.GetAnnotations()[v1.AnnotationManaged] == "false":
		return true, nil
	case equality.Semantic.DeepEqual(o.spec(), want.spec()):
		return false, nil
	case !marked:
		return true, nil
	}
	hash, err := o.hash()
	return hash != written, err
}

// equal reports whether nothing is to be written.
func (o object) equal(other object) bool {
	return equality.Semantic.DeepEqual(o.spec(), other.spec()) && maps.Equal(o.GetLabels(), other.GetLabels()) &&
		maps.Equal(o.GetAnnotations(), other.GetAnnotations())
}

// load reads all that ships, each object once, the Operations first.
func load() ([]object, error) {
	var all []object
	names, err := fs.Glob(operations.Files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list what ships: %w", err)
	}
	for _, name := range names {
		text, err := operations.Files.ReadFile(name)
		if err == nil {
			all, err = decode(all, text)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b object) int { return strings.Compare(a.kind(), b.kind()) })
	return all, nil
}

// decode adds the objects of a manifest that are not there yet.
func decode(all []object, manifest []byte) ([]object, error) {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		o := object{&v1.Operation{}}
		if bytes.Contains(document, []byte("\nkind: OperationSet\n")) {
			o = object{&v1.OperationSet{}}
		}
		if err := sigsyaml.UnmarshalStrict(document, o.Object); err != nil {
			return nil, err
		}
		same := func(other object) bool { return other.kind() == o.kind() && other.GetName() == o.GetName() }
		if !slices.ContainsFunc(all, same) {
			all = append(all, o)
		}
	}
}
