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
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/audit"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountfault"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor/external"
	"kubediag.org/kubediag/internal/sentinel"
)

// agent is everything that the agent is made of.
type agent struct {
	options
	apiServer
	inspectors
	registry prometheus.Registerer
	runs     *activeRuns
	repairs  *filelock.Lock // of repairs on this node, with the command kubediag
	runner   *pipeline.Runner
	guard    *guard.Guard
	recorder *audit.Recorder
	closers  []func() error // end what the manager does not
}

// apiServer is the agent's way to the API server, and what it knows from there.
type apiServer struct {
	manager   manager.Manager
	freshness *guard.Freshness
	store     *statusStore
	pods      *nodePods
}

// inspectors look at the node.
type inspectors struct {
	kubelet     *kubelet.Finder
	volumes     *volume.Inspector
	orphans     *orphan.Inspector
	connections *fuse.Control // nil if the kernel reports nothing
}

// assemble makes the parts and hands them to the manager, which starts them.
func (a *agent) assemble(ctx context.Context) error {
	a.runs = newRuns()
	a.repairs = &filelock.Lock{Path: filepath.Join(a.DataRoot, filelock.Repairs)}
	a.store = &statusStore{client: a.manager.GetClient(), live: a.manager.GetAPIReader(), backoff: saveBackoff}
	a.pods = &nodePods{node: a.NodeName, cache: a.manager.GetCache(), live: a.manager.GetAPIReader()}
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
	a.runner, err = a.newRunner(observer)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, a.runner.Close)
	if err := startWatching(ctx, a.manager); err != nil {
		return err
	}
	reconciler := &reconciler{
		node: a.NodeName, namespace: a.Namespace, cache: a.manager.GetCache(), live: a.manager.GetAPIReader(), runs: a.runs, done: observer.Forget,
		runner: &podGuard{
			runner: a.runner, pods: a.pods, store: a.store, observer: observer,
			rights: &admission.Rights{Reader: a.manager.GetAPIReader(), Namespace: a.Namespace},
		},
	}
	if err := reconciler.setUp(a.manager, a.Workers); err != nil {
		return err
	}
	if err := a.newRecorder(); err != nil {
		return err
	}
	watcher, faults, err := a.newSentinel(observer)
	if err != nil {
		return err
	}
	if err := a.addRunnables(reconciler, watcher, faults); err != nil {
		return err
	}
	return addChecks(a.manager, a.kubelet)
}

func (a *agent) newRunner(o *observer) (*pipeline.Runner, error) {
	evictor, err := a.newEvictor(a.manager.GetConfig())
	if err != nil {
		return nil, err
	}
	deps := registry.Deps{
		Pods: a.pods, Kubelet: a.kubelet, Volumes: a.volumes, Orphans: a.orphans, Evictor: evictor, Lister: a.pods, Claims: a.pods,
		IdleFile: filepath.Join(a.DataRoot, idleFile),
	}
	if a.connections != nil {
		deps.Connections = a.connections
	}
	registry, err := registry.New(deps)
	if err != nil {
		return nil, err
	}
	client, err := external.NewClient(a.ProcessorCAFile)
	if err != nil {
		return nil, fmt.Errorf("--processor-ca-file=%s: %w", a.ProcessorCAFile, err)
	}
	boot, err := sys.BootID()
	if err != nil {
		return nil, err
	}
	return pipeline.New(pipeline.Options{
		Node:            a.NodeName,
		Boot:            boot,
		DataRoot:        a.DataRoot,
		Registry:        registry,
		Store:           a.store,
		Approvals:       &approvals{client: a.manager.GetClient(), live: a.manager.GetAPIReader()},
		Observer:        o,
		External:        &external.Processors{Node: a.NodeName, HTTP: client, EnableScripts: a.EnableScripts, EnterScripts: a.enterHost},
		DefaultDeadline: a.DiagnosisTimeout,
		Exclusive:       a.repairs.Hold,
		Gate:            &repairHolder{guard: a.guard, pods: a.pods, diagnoses: a.manager.GetCache()},
	})
}

// enterHost runs fn where the kubelet is, which is where scripts find the node's programs.
func (a *agent) enterHost(fn func() error) error {
	node, err := a.kubelet.Node(context.Background())
	if err != nil {
		return err
	}
	return node.Do(context.Background(), fn)
}

func (a *agent) observer() (*observer, error) {
	counters, err := newMetrics(a.registry, a.NodeName, gaugeSources{
		running:   a.runs.countRunning,
		abandoned: func() int64 { return a.runner.Abandoned() },
	})
	if err != nil {
		return nil, err
	}
	events, broadcaster, err := newRecorder(a.manager, a.NodeName)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, func() error { broadcaster.Shutdown(); return nil })
	o := newObserver(events, counters, a.metricLabel)
	o.log = a.manager.GetLogger().WithName("diagnosis")
	return o, nil
}

// metricLabel is the name of a built-in processor, or what kind of other one an Operation names.
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

func (a *agent) addRunnables(r *reconciler, watcher *sentinel.Sentinel, faults *mountfault.Writer) error {
	for _, runnable := range []manager.Runnable{
		r.cleanup(),
		manager.RunnableFunc(watcher.Run),
		a.guard,
		manager.RunnableFunc(a.recorder.Run),
		faults,
		&agentLease{
			client: a.manager.GetClient(), namespace: a.Namespace, node: a.NodeName,
			renewal: a.LeaseRenewal, duration: a.LeaseDuration, now: time.Now, renewed: a.freshness.Answered,
		},
	} {
		if err := a.manager.Add(runnable); err != nil {
			return err
		}
	}
	return nil
}

// close ends what the manager does not, the latest first.
func (a *agent) close() error {
	var errs []error
	for _, end := range slices.Backward(a.closers) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}
