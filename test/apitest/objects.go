// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/manifests"
)

// waitTimeout is how long Eventually waits. It is long because test machines are slow, not because anything should take
// that long.
const waitTimeout = 2 * time.Minute

// Eventually waits until check returns nil and fails the test when it does not in time.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	must(t, poll(ctx, check))
}

// poll calls check until it returns nil, and returns its last error when ctx is done.
func poll(ctx context.Context, check func() error) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Namespace makes a namespace with a name of its own. It stays: no controller is there to empty it.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := e.Client.Create(context.Background(), ns); err != nil {
		t.Fatalf("making namespace: %v", err)
	}
	return ns.Name
}

// Objects reads a stream of YAML documents.
func Objects(t testing.TB, stream string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for document, err := range manifests.Documents([]byte(stream)) {
		text, err2 := yaml.YAMLToJSON(document.Text)
		object := &unstructured.Unstructured{}
		if err := errors.Join(err, err2); err != nil {
			t.Fatalf("reading manifest: %v\n%s", err, document.Text)
		}
		if err := object.UnmarshalJSON(text); err != nil {
			t.Fatalf("reading manifest: %v\n%s", err, document.Text)
		}
		objects = append(objects, object)
	}
	return objects
}

// Create creates an object with strict validation, as kubectl does, and deletes it when the test has ended.
func (e *Env) Create(t testing.TB, o client.Object) error {
	t.Helper()
	strict := client.WithFieldValidation(e.Client, metav1.FieldValidationStrict)
	if err := strict.Create(context.Background(), o); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := e.Client.Delete(context.Background(), o); client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting %s: %v", o.GetName(), err)
		}
	})
	return nil
}

// MustCreate is Create for what must succeed.
func (e *Env) MustCreate(t testing.TB, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := e.Create(t, o); err != nil {
			t.Fatal(fmt.Errorf("creating %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err))
		}
	}
}

// Until reads an object again and again, and waits until it is as wanted.
func (e *Env) Until(t testing.TB, o client.Object, wanted func() bool) {
	t.Helper()
	Eventually(t, func() error {
		if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if !wanted() {
			return fmt.Errorf("not as wanted yet: %+v", o)
		}
		return nil
	})
}

// ReadTyped reads an object back through its Go type.
func (e *Env) ReadTyped(ctx context.Context, object *unstructured.Unstructured) error {
	into, err := e.Client.Scheme().New(object.GroupVersionKind())
	if err == nil {
		err = e.Client.Get(ctx, client.ObjectKeyFromObject(object), into.(client.Object))
	}
	if err != nil {
		return fmt.Errorf("reading %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}
