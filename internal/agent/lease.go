// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
)

// agentLease is the agent's sign of life: a Lease of its own that the manager watches. It belongs to no other object: a
// pod that owned it would take it along when it is replaced.
type agentLease struct {
	client            client.Client
	namespace, node   string
	renewal, duration time.Duration
	now               func() time.Time
	// pages is set if the agent lists in pages, because its predecessor was probably killed for memory.
	pages bool
	// notJudged is the value of LabelNotJudged; nil: there is none.
	notJudged func() string
	// renewed is called after each renewal. It may be nil.
	renewed func()
}

// Start renews the Lease until ctx is done. A renewal that fails is tried again sooner.
func (l *agentLease) Start(ctx context.Context) error {
	for {
		wait := l.renewal
		if err := l.renew(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Could not renew the Lease", "lease", v1.AgentLeaseName(l.node))
			wait = min(wait, 2*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// renew writes the Lease. Policies of older releases allow two labels, and a third one must not end the sign of life.
func (l *agentLease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.renewal)
	defer cancel()
	want := l.newLease()
	err := l.write(ctx, want)
	if apierrors.IsForbidden(err) && want.Labels[v1.LabelNotJudged] != "" {
		delete(want.Labels, v1.LabelNotJudged)
		err = l.write(ctx, want)
	}
	if err == nil && l.renewed != nil {
		l.renewed()
	}
	return err
}

// write writes the Lease in one request, and makes it if there is none.
func (l *agentLease) write(ctx context.Context, want *coordinationv1.Lease) error {
	labels := map[string]any{v1.LabelPages: nil, v1.LabelNotJudged: nil} // not of the predecessor
	for name, value := range want.Labels {
		labels[name] = value
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": labels},
		"spec":     want.Spec,
	})
	if err != nil {
		return fmt.Errorf("encoding Lease: %w", err)
	}
	err = l.client.Patch(ctx, want.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		want.Spec.AcquireTime = want.Spec.RenewTime
		err = l.client.Create(ctx, want)
	}
	return err
}

func (l *agentLease) newLease() *coordinationv1.Lease {
	seconds := int32(l.duration / time.Second)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace,
			Name:      v1.AgentLeaseName(l.node),
			Labels:    map[string]string{v1.LabelAgent: v1.NodeLabelValue(l.node)},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &l.node,
			LeaseDurationSeconds: &seconds,
			RenewTime:            &metav1.MicroTime{Time: l.now()},
		},
	}
	if l.pages {
		lease.Labels[v1.LabelPages] = "true"
	}
	if l.notJudged != nil {
		if value := l.notJudged(); value != "" {
			lease.Labels[v1.LabelNotJudged] = value
		}
	}
	return lease
}
