// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package sentineltest has sentinels watch nodes of tests.
package sentineltest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/sentinel"
)

// onlyWatches is an observer, and a guard that lets nothing be repaired.
type onlyWatches struct{}

func (onlyWatches) Found(fault.Finding, time.Duration)                       {}
func (onlyWatches) Begin(sentinel.Repair) error                              { return nil }
func (onlyWatches) Repaired(sentinel.Repair)                                 {}
func (onlyWatches) Left(sentinel.Repair)                                     {}
func (onlyWatches) Trouble(error)                                            {}
func (onlyWatches) Mode(fault.Code, *corev1.Pod) sentinel.Mode               { return sentinel.Observe }
func (onlyWatches) Acquire(context.Context, fault.Finding, *corev1.Pod) bool { return false }
func (onlyWatches) Ended(fault.Key, fault.Pod, error)                        {}
func (onlyWatches) Subscribe() <-chan struct{}                               { return nil }

// Watch has a sentinel watch, and repair nothing, until the test ends.
func Watch(t testing.TB, s *sentinel.Sentinel) {
	t.Helper()
	connections, err := fuse.Open()
	kerneltest.Must(t, err)
	t.Cleanup(func() { _ = connections.Close() })
	s.Mode, s.Guard, s.Observer, s.Connections = sentinel.Observe, onlyWatches{}, onlyWatches{}, connections
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		kerneltest.Must(t, <-ended)
	})
}
