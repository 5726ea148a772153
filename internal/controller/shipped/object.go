// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package shipped

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	shipped "kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/manifests"
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

// load reads all that ships, the Operations first.
func load() (all []object, err error) {
	operations, err := manifests.Read[v1.Operation](shipped.Files, "Operation")
	sets, errSets := manifests.Read[v1.OperationSet](shipped.Files, "OperationSet")
	for i := range operations {
		all = append(all, object{&operations[i]})
	}
	for i := range sets {
		all = append(all, object{&sets[i]})
	}
	return all, errors.Join(err, errSets)
}
