// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/audit"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor/external"
	"kubediag.org/kubediag/internal/sentinel"
)

// agent has all parts of the agent.
type agent struct {
	options  options
	registry prometheus.Registerer

	manager   manager.Manager
	freshness *guard.Freshness // of the answers of the API server
	pages     bool             // the cache is filled in pages
	store     *statusStore
	pods      *nodePods

	kubelet     *kubelet.Finder
	volumes     *volume.Inspector // for Diagnoses
	watched     *volume.Inspector // the same for the sentinel, which never waits for a second look
	orphans     *orphan.Inspector
	devices     *device.Inspector
	connections *fuse.Control // nil if the kernel reports nothing

	runs     *activeRuns
	repairs  *filelock.Lock // of repairs on this node, with the command kubediag
	runner   *pipeline.Runner
	guard    *guard.Guard
	recorder *audit.Recorder
	closers  []func() error // end all that the manager does not end
}

// assemble makes the parts and hands them to the manager, which starts them.
func (a *agent) assemble(ctx context.Context) error {
	a.runs = newRuns()
	a.repairs = &filelock.Lock{Path: filepath.Join(a.options.DataRoot, filelock.Repairs)}
	a.store = &statusStore{client: a.manager.GetClient(), live: a.manager.GetAPIReader(), backoff: saveBackoff}
	a.pods = &nodePods{node: a.options.NodeName, cache: a.manager.GetCache(), live: a.manager.GetAPIReader(), large: newLargePods()}
	observer, err := a.observer()
	if err != nil {
		return err
	}
	if err := a.newVolumes(ctx); err != nil {
		return err
	}
	if err := a.newGuard(ctx); err != nil {
		return err
	}
	if a.runner, err = a.newRunner(observer); err != nil {
		return err
	}
	a.closers = append(a.closers, a.runner.Close)
	if err := startWatching(ctx, a.manager); err != nil {
		return err
	}
	reconciler := &reconciler{
		node: a.options.NodeName, namespace: a.options.Namespace, cache: a.manager.GetCache(), live: a.manager.GetAPIReader(), runs: a.runs, done: observer.Forget,
		runner: a.runner, refuse: (&podGuard{
			pods: a.pods, store: a.store, observer: observer,
			rights: &admission.Rights{Reader: a.manager.GetAPIReader(), Namespace: a.options.Namespace},
		}).refuse,
	}
	if err := reconciler.setUp(a.manager, a.options.Workers); err != nil {
		return err
	}
	watcher, faults, err := a.newSentinel(observer)
	if err != nil {
		return err
	}
	lease := &agentLease{
		client: a.manager.GetClient(), namespace: a.options.Namespace, node: a.options.NodeName,
		renewal: a.options.LeaseRenewal, duration: a.options.LeaseDuration, now: time.Now, renewed: a.freshness.Answered,
		pages: a.pages,
	}
	parts := []manager.Runnable{
		reconciler.cleanup(), manager.RunnableFunc(watcher.Run), a.guard, manager.RunnableFunc(a.recorder.Run), faults,
		manager.RunnableFunc(a.pods.readLarge), lease,
	}
	if a.options.SentinelMode != sentinel.Off {
		whole := a.newCoverage(func() bool { return watcher.Status().Watching })
		if err := whole.register(a.registry); err != nil {
			return err
		}
		lease.notJudged, parts = whole.notJudged, append(parts, manager.RunnableFunc(whole.Start))
	}
	for _, runnable := range parts {
		if err := a.manager.Add(runnable); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) newRunner(o *observer) (*pipeline.Runner, error) {
	evictor, err := a.options.newEvictor(a.manager.GetConfig())
	if err != nil {
		return nil, err
	}
	deps := registry.Deps{
		Pods: a.pods, Kubelet: a.kubelet, Volumes: a.volumes, Orphans: a.orphans, Devices: a.devices, Evictor: evictor, Lister: a.pods,
		ClaimPaths: a.pods.ClaimPaths, Attachments: a.pods, IdleFile: filepath.Join(a.options.DataRoot, idleFile),
	}
	if a.connections != nil {
		deps.Connections = a.connections
	}
	registry, err := registry.New(deps)
	if err != nil {
		return nil, err
	}
	client, err := external.NewClient(a.options.ProcessorCAFile)
	if err != nil {
		return nil, fmt.Errorf("--processor-ca-file=%s: %w", a.options.ProcessorCAFile, err)
	}
	boot, err := sys.BootID()
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Options{
		Node:            a.options.NodeName,
		Boot:            boot,
		DataRoot:        a.options.DataRoot,
		Registry:        registry,
		Store:           a.store,
		Approvals:       a.store,
		Observer:        o,
		External:        &external.Processors{Node: a.options.NodeName, HTTP: client, EnableScripts: a.options.EnableScripts, EnterScripts: a.enterHost},
		DefaultDeadline: a.options.DiagnosisTimeout,
		Exclusive:       a.repairs.Hold,
		Gate:            &repairHolder{guard: a.guard, pods: a.pods, diagnoses: a.manager.GetCache()},
	})
}

// enterHost runs fn in the mount namespace of the kubelet, in which scripts find the node's programs.
func (a *agent) enterHost(fn func() error) error {
	node, err := a.kubelet.Node(context.Background())
	if err != nil {
		return err
	}
	return node.Do(context.Background(), fn)
}

func (a *agent) observer() (*observer, error) {
	counters, err := newMetrics(a.registry, a.options.NodeName, a.runs.countRunning, func() int64 { return a.runner.Abandoned() })
	if err != nil {
		return nil, err
	}
	client, err := corev1client.NewForConfigAndClient(a.manager.GetConfig(), a.manager.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making client for Events: %w", err)
	}
	// Events of core/v1 are the only ones that API servers of 1.18 know.
	broadcaster := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: eventBurst, MessageFunc: combinedMessage})
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.Events("")})
	a.closers = append(a.closers, func() error { broadcaster.Shutdown(); return nil })
	events := broadcaster.NewRecorder(a.manager.GetScheme(), corev1.EventSource{Component: "kubediag-agent", Host: a.options.NodeName})
	o := newObserver(events, counters, a.metricLabel)
	o.log = a.manager.GetLogger().WithName("diagnosis")
	return o, nil
}

// metricLabel is the name of the built-in processor of an Operation, or the kind of its other processor.
func (a *agent) metricLabel(ctx context.Context, operation string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	op, err := a.store.Operation(ctx, operation)
	if err != nil {
		return "unknown" // it was deleted meanwhile
	}
	call, errs := op.Spec.Call()
	switch {
	case len(errs) > 0:
		return "unknown"
	case call.Kind == v1.ProcessorBuiltIn && builtin.Known(call.BuiltIn):
		return call.BuiltIn
	}
	return string(call.Kind)
}

// close ends all that the manager does not end, the latest first.
func (a *agent) close() error {
	var errs []error
	for _, end := range slices.Backward(a.closers) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}
