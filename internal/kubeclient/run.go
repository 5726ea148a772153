// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// patience is the time that a manager that has not begun its work may take to stop.
const patience = 5 * time.Second

// startable is the part of a controller-runtime manager that Run needs.
type startable interface {
	Add(r manager.Runnable) error
	Start(ctx context.Context) error
}

// Run runs m until it ends or ctx is done, and then lets it stop, which the manager's GracefulShutdownTimeout bounds.
//
// While its caches are not filled, as the API server or CustomResourceDefinitions are missing, a manager does not see
// that ctx is done. It does no work yet, so Run leaves it behind 5 seconds after ctx is done and returns nil: the
// process must end then.
func Run(ctx context.Context, m startable) error {
	work := began{make(chan struct{})}
	if err := m.Add(work); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
	}
	select {
	case <-work.begun: // perhaps after ctx was done
		return <-ended
	default:
		return nil
	}
}

// began notes that the caches are filled: a manager starts it, leader or not, right after that.
type began struct{ begun chan struct{} }

// Start is called once, by the manager.
func (b began) Start(context.Context) error {
	close(b.begun)
	return nil
}

// NeedLeaderElection says no: a manager that stands by has begun too.
func (began) NeedLeaderElection() bool { return false }
