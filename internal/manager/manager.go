// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package manager is the part of kubediag that runs once in a cluster: it binds Diagnoses to nodes, checks Operations
// and OperationSets, makes Diagnoses when Triggers fire, and watches over the agents. It deletes old Diagnoses, and
// the Leases and MountFaults of nodes that are gone. It needs no privilege on any node.
//
// It works against API servers from 1.18 on: it uses no later API (Events are in core/v1), and
// itself checks the fields that an old server drops in silence. It requests lists in the way that every server understands.
package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/controller/approval"
	"kubediag.org/kubediag/internal/controller/diagnosis"
	"kubediag.org/kubediag/internal/controller/lease"
	"kubediag.org/kubediag/internal/controller/mountfault"
	"kubediag.org/kubediag/internal/controller/operation"
	"kubediag.org/kubediag/internal/controller/operationset"
	"kubediag.org/kubediag/internal/controller/recoverypolicy"
	"kubediag.org/kubediag/internal/controller/repairrequest"
	"kubediag.org/kubediag/internal/controller/retention"
	"kubediag.org/kubediag/internal/controller/shipped"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/version"
)

const (
	// leaderElectionID is the name of the manager's Lease.
	leaderElectionID = "kubediag-manager"
	// requestsPerSecond and burst bound the requests of the manager to the API server.
	requestsPerSecond, burst = 200, 400
	// maxDeletions bounds one pass that deletes Diagnoses.
	maxDeletions = 500
	// stopTimeout bounds the work under way when the manager stops.
	stopTimeout = 5 * time.Second
)

// The manager's own Lease, and the Events that leader election makes.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=kubediag
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// newManager makes the manager. It does not talk to the API server before it is started.
func newManager(config *rest.Config, settings options) (manager.Manager, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = requestsPerSecond, burst
	m, err := kubeclient.New(config, manager.Options{
		Cache: cache.Options{ // with the fields that the controllers read, and no others
			ByObject: map[client.Object]cache.ByObject{
				&v1.Diagnosis{}: {Transform: strip}, &v1.MountFault{}: {Transform: strip}, &v1.RecoveryApproval{}: {Transform: strip},
			},
			NewInformer: func(lw toolscache.ListerWatcher, of runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
				return toolscache.NewSharedIndexInformer(kubeclient.Pages(lw, pageSize, strip), of, resync, by)
			},
		},
		Metrics:                       settings.Metrics.Plain(settings.MetricsBindAddress),
		HealthProbeBindAddress:        settings.HealthProbeBindAddress,
		LeaderElection:                settings.LeaderElection,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       settings.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(stopTimeout),
		// The names come from the kinds below. Two managers in one process, as in tests, share their metrics.
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, err
	}
	alerts, err := newReceiver(m, settings)
	if err != nil {
		return nil, err
	}
	err = errors.Join(addControllers(m, settings), addTriggers(m, settings, alerts), settings.Metrics.Add(m, settings.MetricsBindAddress))
	if settings.FaultInfo {
		err = errors.Join(err, metrics.Registry.Register(mountfault.Info{Reader: m.GetCache()}))
	}
	// The caches are filled before this manager is the leader, so that it is soon up to date when it becomes the leader.
	for _, kind := range []client.Object{
		&v1.Diagnosis{}, &v1.Operation{}, &v1.OperationSet{}, &v1.Trigger{}, &v1.RecoveryPolicy{}, &v1.RecoveryApproval{}, &v1.MountFault{},
	} {
		if _, errCache := m.GetCache().GetInformer(context.Background(), kind, cache.BlockUntilSynced(false)); errCache != nil {
			err = errors.Join(err, fmt.Errorf("adding cache: %w", errCache))
		}
	}
	// The manager is healthy while it answers, and ready when its caches are filled. A manager that stands by for the leader is ready, too.
	return m, errors.Join(err, m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("caches", kubeclient.Synced(m.GetCache())))
}

// addControllers adds all controllers but those of Triggers.
func addControllers(m manager.Manager, o options) error {
	access, err := authorizationv1.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making client of access reviews: %w", err)
	}
	var real clock.RealClock
	c, reader := m.GetClient(), m.GetAPIReader()
	events := m.GetEventRecorderFor("kubediag-manager") //nolint:staticcheck // events.k8s.io/v1 came with 1.19
	for _, controller := range []interface {
		SetupWithManager(m manager.Manager) error
	}{
		&operation.Reconciler{Client: c},
		&operationset.Reconciler{Client: c},
		&shipped.Reconciler{Client: c, Version: version.String()},
		&diagnosis.Reconciler{
			Client: c, Reader: reader, Events: events, Clock: real,
			Agents: &diagnosis.Agents{
				Reader: reader, Clock: real, Namespace: o.Namespace, LeaseDuration: o.AgentLeaseDuration, CheckEvery: o.AgentCheckInterval,
			},
			Rights: &admission.Rights{Reader: reader, Namespace: o.Namespace},
		},
		&approval.Reconciler{Client: c, Clock: real, Events: events},
		&repairrequest.Reconciler{Client: c, Clock: real, Namespace: o.Namespace, Limiter: repairrequest.NewLimiter()},
		&retention.Keeper{
			Client: c, Clock: real, Every: o.RetentionInterval,
			Limits: retention.Limits{
				TTL: o.DiagnosisTTL, PerNode: o.DiagnosesPerNode, MinimumAge: o.DiagnosisMinimumTTL, MaxDeletions: maxDeletions,
				Namespace: o.Namespace,
			},
		},
		&lease.Sweeper{Client: c, Reader: reader, Clock: real, Namespace: o.Namespace},
		&lease.Ages{Reader: reader, Clock: real, Namespace: o.Namespace, Every: o.LeaseAgeInterval},
		&mountfault.Collector{Client: c, Reader: reader, Clock: real},
		&recoverypolicy.Reconciler{
			Client: c, Reader: reader, Clock: real, Every: o.PolicyInterval, Access: access.SelfSubjectAccessReviews(), Events: events,
		},
	} {
		if err := controller.SetupWithManager(m); err != nil {
			return fmt.Errorf("adding controller: %w", err)
		}
	}
	return nil
}
