// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// always is a Guard with one mode for all faults, and without budgets.
type always struct{ mode Mode }

// Mode implements Guard.
func (a always) Mode(fault.Code, *corev1.Pod) Mode { return a.mode }

// Acquire implements Guard.
func (a always) Acquire(context.Context, fault.Finding, *corev1.Pod) bool { return a.mode == Automatic }

// Ended implements Guard.
func (always) Ended(fault.Key, fault.Pod, error) {}

// Subscribe implements Guard.
func (always) Subscribe() <-chan struct{} { return nil }
