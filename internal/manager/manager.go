// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "kubediag.org/kubediag/api/v1"
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
	// requestsPerSecond and burst bound what the manager asks of the API server.
	requestsPerSecond, burst = 200, 400
	// maxDeletions bounds one look for Diagnoses to delete.
	maxDeletions = 500
	// stopTimeout is how long what is under way may take when the manager stops.
	stopTimeout = 5 * time.Second
)

// The manager's own Lease, and the Events that leader election makes.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=kubediag
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// newManager makes the manager. It does not talk to the API server before it is started.
func newManager(config *rest.Config, settings options) (manager.Manager, error) {
	unique := true // the names are those of the kinds below; two managers in one process, as in tests, share their metrics
	timeout := stopTimeout
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = requestsPerSecond, burst
	m, err := kubeclient.New(config, manager.Options{
		Cache:                         cacheOptions(),
		Metrics:                       server.Options{BindAddress: settings.MetricsBindAddress},
		HealthProbeBindAddress:        settings.HealthProbeBindAddress,
		LeaderElection:                settings.LeaderElection,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       settings.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &timeout,
		Controller:                    ctrlconfig.Controller{SkipNameValidation: &unique},
	})
	if err != nil {
		return nil, err
	}
	for _, add := range controllers(m, settings) {
		if err := add(m); err != nil {
			return nil, fmt.Errorf("adding controller: %w", err)
		}
	}
	return m, errors.Join(addCaches(m), addChecks(m))
}

// addCaches fills the caches before this manager is the leader, so that it is soon up to date when it becomes it.
func addCaches(m manager.Manager) error {
	for _, kind := range []client.Object{
		&v1.Diagnosis{}, &v1.Operation{}, &v1.OperationSet{}, &v1.Trigger{}, &v1.RecoveryPolicy{}, &v1.RecoveryApproval{}, &v1.MountFault{},
	} {
		if _, err := m.GetCache().GetInformer(context.Background(), kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("adding cache: %w", err)
		}
	}
	return nil
}

// controllers are all there are.
func controllers(m manager.Manager, settings options) []func(manager.Manager) error {
	var real clock.RealClock
	operations := &operation.Reconciler{Client: m.GetClient()}
	operationSets := &operationset.Reconciler{Client: m.GetClient()}
	ships := &shipped.Reconciler{Client: m.GetClient(), Version: version.String()}
	diagnoses := &diagnosis.Reconciler{
		Client: m.GetClient(),
		Reader: m.GetAPIReader(),
		Events: m.GetEventRecorderFor("kubediag-manager"), //nolint:staticcheck // events.k8s.io/v1 came with 1.19
		Clock:  real,
		Agents: &diagnosis.Agents{
			Reader: m.GetAPIReader(), Clock: real, Namespace: settings.Namespace,
			LeaseDuration: settings.AgentLeaseDuration, CheckEvery: settings.AgentCheckInterval,
		},
	}
	keeper := &retention.Keeper{
		Client: m.GetClient(), Clock: real, Every: settings.RetentionInterval,
		Limits: retention.Limits{
			TTL: settings.DiagnosisTTL, PerNode: settings.DiagnosesPerNode, MinimumAge: settings.DiagnosisMinimumTTL, MaxDeletions: maxDeletions,
		},
	}
	approvals := &approval.Reconciler{
		Client: m.GetClient(), Clock: real,
		Events: m.GetEventRecorderFor("kubediag-manager"), //nolint:staticcheck // events.k8s.io/v1 came with 1.19
	}
	requests := &repairrequest.Reconciler{
		Client: m.GetClient(), Clock: real, Namespace: settings.Namespace, Limiter: rate.NewLimiter(repairrequest.PerSecond, repairrequest.Burst),
	}
	faults := &mountfault.Collector{Client: m.GetClient(), Reader: m.GetAPIReader(), Clock: real}
	ages := &lease.Ages{Reader: m.GetAPIReader(), Clock: real, Namespace: settings.Namespace, Every: settings.LeaseAgeInterval}
	leases := &lease.Sweeper{Client: m.GetClient(), Reader: m.GetAPIReader(), Clock: real, Namespace: settings.Namespace}
	return []func(manager.Manager) error{
		operations.SetupWithManager,
		operationSets.SetupWithManager,
		func(m manager.Manager) error { return addTriggers(m, settings) },
		ships.SetupWithManager,
		diagnoses.SetupWithManager,
		approvals.SetupWithManager,
		requests.SetupWithManager,
		keeper.SetupWithManager,
		leases.SetupWithManager,
		ages.SetupWithManager,
		faults.SetupWithManager,
		func(m manager.Manager) error { return addPolicies(m, settings) },
	}
}

// addPolicies adds what keeps RecoveryPolicies.
func addPolicies(m manager.Manager, o options) error {
	access, err := authorizationv1.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making client of access reviews: %w", err)
	}
	r := &recoverypolicy.Reconciler{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Clock: clock.RealClock{}, Every: o.PolicyInterval, Access: access.SelfSubjectAccessReviews(),
		Events: m.GetEventRecorderFor("kubediag-manager"), //nolint:staticcheck // events.k8s.io/v1 came with 1.19
	}
	return r.SetupWithManager(m)
}

// addChecks makes the manager healthy as long as it answers and ready once its caches are filled. One that stands by
// for the leader is ready too.
func addChecks(m manager.Manager) error {
	return errors.Join(m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("caches", kubeclient.Synced(m.GetCache())))
}
