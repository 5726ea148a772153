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
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	shipped "kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/manifests"
)

// shippedObject is an Operation or an OperationSet.
type shippedObject struct{ client.Object }

func (o shippedObject) objectKind() string { return reflect.TypeOf(o.Object).Elem().Name() }

// newEmpty is a new object of the same kind.
func (o shippedObject) newEmpty() client.Object {
	return reflect.New(reflect.TypeOf(o.Object).Elem()).Interface().(client.Object)
}

func (o shippedObject) deepCopy() shippedObject {
	return shippedObject{o.DeepCopyObject().(client.Object)}
}

func (o shippedObject) spec() reflect.Value {
	return reflect.ValueOf(o.Object).Elem().FieldByName("Spec")
}

// specPointer is the spec, as a pointer into the object.
func (o shippedObject) specPointer() any { return o.spec().Addr().Interface() }

// takeSpec copies the spec of another object of the same kind.
func (o shippedObject) takeSpec(from shippedObject) { o.spec().Set(from.deepCopy().spec()) }

// specHash returns the hash of the spec.
func (o shippedObject) specHash() (string, error) {
	text, err := json.Marshal(o.specPointer())
	if err != nil {
		return "", fmt.Errorf("encode spec: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// annotate sets the hash of the spec, and the release that writes it.
func (o shippedObject) annotate(version string) error {
	hash, err := o.specHash()
	if err != nil {
		return err
	}
	labels, annotations := map[string]string{}, map[string]string{}
	maps.Copy(labels, o.GetLabels())
	maps.Copy(annotations, o.GetAnnotations())
	delete(labels, v1.LabelVersion)
	if len(validation.IsValidLabelValue(version)) == 0 {
		labels[v1.LabelVersion] = version
	}
	annotations[v1.AnnotationSpecHash] = hash
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return nil
}

// belongsToUser reports whether the object is a user's: it was never ours, a user has changed it, or a user says so.
func (o shippedObject) belongsToUser(want shippedObject) (bool, error) {
	written, marked := o.GetAnnotations()[v1.AnnotationSpecHash]
	switch {
	case o.GetAnnotations()[v1.AnnotationManaged] == "false":
		return true, nil
	case equality.Semantic.DeepEqual(o.specPointer(), want.specPointer()):
		return false, nil
	case !marked:
		return true, nil
	}
	hash, err := o.specHash()
	return hash != written, err
}

// loadShipped reads all shipped objects, the Operations first.
func loadShipped() (all []shippedObject, err error) {
	operations, err := manifests.Read[v1.Operation](shipped.Files, "Operation")
	sets, errSets := manifests.Read[v1.OperationSet](shipped.Files, "OperationSet")
	for i := range operations {
		all = append(all, shippedObject{&operations[i]})
	}
	for i := range sets {
		all = append(all, shippedObject{&sets[i]})
	}
	return all, errors.Join(err, errSets)
}
