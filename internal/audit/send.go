// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// fieldOwner is the agent's name in managedFields.
const fieldOwner = client.FieldOwner("kubediag-agent")

// send gives the records that wait to the API server, in their order.
func (r *Recorder) send(ctx context.Context) error {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.mu.Unlock()
			return nil
		}
		d := r.queue[0].record
		r.mu.Unlock()
		if err := r.store(ctx, d.DeepCopy()); err != nil {
			return err
		}
		r.mu.Lock()
		r.room.Free(r.queue[0].owner)
		r.queue = slices.Delete(r.queue, 0, 1)
		r.mu.Unlock()
		if err := r.spool.remove(d.Name); err != nil {
			return err
		}
	}
}

// store creates a record, unless an earlier attempt has, and writes its status. A record that the API server calls
// invalid is logged whole: it never becomes valid.
func (r *Recorder) store(ctx context.Context, diagnosis *v1.Diagnosis) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	status, err := json.Marshal(map[string]any{"status": diagnosis.Status})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	err = r.Client.Create(ctx, diagnosis, fieldOwner)
	if apierrors.IsAlreadyExists(err) {
		err = r.Reader.Get(ctx, client.ObjectKeyFromObject(diagnosis), diagnosis)
		if apierrors.IsNotFound(err) || err == nil && diagnosis.Status.Phase != "" {
			return nil // it is all there, or was and has been deleted
		}
	}
	if err == nil {
		err = r.Client.Status().Patch(ctx, diagnosis, client.RawPatch(types.MergePatchType, status), fieldOwner)
	}
	if apierrors.IsInvalid(err) {
		r.Log.Error(err, "The API server takes no record of a repair", "diagnosis", diagnosis.Name, "status", string(status))
		return nil
	}
	if err != nil {
		return fmt.Errorf("store record %q: %w", diagnosis.Name, err)
	}
	return nil
}
