// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/audit"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/guard"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/filelock"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/mountfault"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor/external"
	"kubediag.org/kubediag/internal/sentinel"
)

// agent is everything that the agent is made of.
type agent struct {
	options
	manager  manager.Manager
	registry prometheus.Registerer
	kubelet  *kubelet.Finder

	runs        *activeRuns
	store       *statusStore
	pods        *nodePods
	index       *podIndex
	volumes     *volume.Inspector
	orphans     *orphan.Inspector
	connections *fuse.Control // nil if the kernel reports nothing
	runner      *pipeline.Runner
	repairs     *filelock.Lock // of repairs on this node, with the command kubediag
	guard       *guard.Guard
	freshness   *guard.Freshness
	recorder    *audit.Recorder
	broadcaster record.EventBroadcaster
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
	if err := startWatching(ctx, a.manager); err != nil {
		return err
	}
	reconciler := &reconciler{
		node: a.NodeName, cache: a.manager.GetCache(), runs: a.runs, done: observer.Forget,
		runner: &podGuard{runner: a.runner, pods: a.pods, store: a.store, observer: observer},
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
		Pods: a.pods, Kubelet: a.kubelet, Volumes: a.volumes, Orphans: a.orphans, Evictor: evictor, Lister: a.index, Claims: a.pods,
		IdleFile: filepath.Join(a.DataRoot, idleFile),
	}
	if a.connections != nil {
		deps.Connections = a.connections
	}
	registry, err := registry.New(deps)
	if err != nil {
		return nil, err
	}
	hold := &repairHolder{guard: a.guard, index: a.index, pods: a.pods, diagnoses: a.manager.GetCache()}
	client, err := external.NewClient(a.ProcessorCAFile)
	if err != nil {
		return nil, fmt.Errorf("--processor-ca-file=%s: %w", a.ProcessorCAFile, err)
	}
	return pipeline.New(pipeline.Options{
		Node:            a.NodeName,
		DataRoot:        a.DataRoot,
		Registry:        registry.Replace(hold.holdRepairs),
		Store:           a.store,
		Approvals:       &approvals{client: a.manager.GetClient(), live: a.manager.GetAPIReader()},
		Observer:        o,
		External:        &external.Processors{Node: a.NodeName, HTTP: client, EnableScripts: a.EnableScripts, EnterScripts: a.enterHost},
		DefaultDeadline: a.DiagnosisTimeout,
		Exclusive:       a.repairs.Hold,
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
	a.broadcaster = broadcaster
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

// close ends what the manager does not.
func (a *agent) close() error {
	if a.broadcaster != nil {
		a.broadcaster.Shutdown()
	}
	var err error
	if a.runner != nil {
		err = a.runner.Close()
	}
	if a.connections != nil {
		err = errors.Join(err, a.connections.Close())
	}
	if a.recorder != nil {
		err = errors.Join(err, a.recorder.Close())
	}
	return err
}
