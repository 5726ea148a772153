// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/pipeline"
)

// fieldOwner is the agent's name in managedFields.
const fieldOwner = client.FieldOwner("kubediag-agent")

// saveBackoff is how often a status is sent before the Diagnosis is given back to the queue: six times in about 16
// seconds.
var saveBackoff = wait.Backoff{Steps: 6, Duration: 250 * time.Millisecond, Factor: 2.5, Jitter: 0.1, Cap: 10 * time.Second}

// statusStore is the pipeline's Store and Approvals on the API server: definitions come from the cache, statuses go straight out.
type statusStore struct {
	client  client.Client
	live    client.Reader
	backoff wait.Backoff
}

// OperationSet returns an OperationSet by name.
func (s *statusStore) OperationSet(ctx context.Context, name string) (*v1.OperationSet, error) {
	set := &v1.OperationSet{}
	return set, s.readDefinition(ctx, name, set)
}

// Operation returns an Operation by name.
func (s *statusStore) Operation(ctx context.Context, name string) (*v1.Operation, error) {
	op := &v1.Operation{}
	return op, s.readDefinition(ctx, name, op)
}

// readDefinition reads the cache, and asks the API server before it says that there is none: the watch of definitions
// may be behind that of Diagnoses, and who applies all of them at once must not see one fail for it.
func (s *statusStore) readDefinition(ctx context.Context, name string, into client.Object) error {
	key := types.NamespacedName{Name: name}
	err := s.client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		err = s.live.Get(ctx, key, into)
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", pipeline.ErrNotFound, err)
	}
	return err
}

// Save replaces the status of this very Diagnosis, also an old one, and no other. It sends nothing but the status again
// when that fails, never work.
func (s *statusStore) Save(ctx context.Context, diagnosis *v1.Diagnosis) error {
	// The patch replaces the status as a whole, so that nothing of an earlier one stays behind. It applies to an object with the same UID
	// only. A merge patch that carries the UID would not do: the API server takes the metadata of a custom resource from the stored object
	// when its status is written, and compares nothing.
	patch, err := json.Marshal([]struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}{
		{"test", "/metadata/uid", diagnosis.UID},
		{"add", "/status", diagnosis.Status},
	})
	if err != nil {
		return fmt.Errorf("encoding status: %w", err)
	}
	var last error
	err = wait.ExponentialBackoffWithContext(ctx, s.backoff, func(ctx context.Context) (bool, error) {
		target := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: diagnosis.Namespace, Name: diagnosis.Name}}
		last = s.client.Status().Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch), fieldOwner)
		switch {
		case last == nil:
			return true, nil
		case apierrors.IsNotFound(last):
			return false, fmt.Errorf("%w: %w", pipeline.ErrGone, last)
		case apierrors.IsInvalid(last):
			now := &metav1.PartialObjectMetadata{}
			now.SetGroupVersionKind(v1.GroupVersion.WithKind("Diagnosis"))
			err := s.live.Get(ctx, client.ObjectKeyFromObject(diagnosis), now)
			if apierrors.IsNotFound(err) || err == nil && now.UID != diagnosis.UID { // else the status itself is invalid
				return false, fmt.Errorf("%w: %w", pipeline.ErrGone, last)
			}
			return false, fmt.Errorf("storing status: %w", last)
		}
		return false, nil
	})
	if wait.Interrupted(err) && last != nil {
		return fmt.Errorf("storing status: %w", last)
	}
	return err
}
