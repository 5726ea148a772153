// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/store"
)

// localEngine runs Diagnoses on this node with the pipeline and the processors of the agent. Its store is in memory and
// has the Operations and OperationSets that ship.
type localEngine struct {
	pods           *nodePods
	podsHere       []*corev1.Pod // all pods of the node, once they were listed
	store          store.Memory
	registry       *pipeline.Registry
	diagnosisCount int      // Diagnoses
	notes          []string // why a source of pods does not answer
}

// newEngine makes one for the node of the kubelet, with pods of a file, or without one of the kubelet and the container
// runtime.
func newEngine(ctx context.Context, node *kubelet.Node, specs podFile, orphanAge time.Duration) (*localEngine, error) {
	engine := &localEngine{pods: &nodePods{node: node, specs: specs, name: nodeNameOf(specs)}}
	if err := engine.loadShipped(); err != nil {
		return nil, err
	}
	runner := &subprocess.Runner{}
	d := registry.Deps{
		Pods: engine.pods, Kubelet: node, Lister: engine,
		Volumes: &volume.Inspector{Kubelet: node, Prober: &asking.Prober{}, Runner: runner},
		Devices: &device.Inspector{Kubelet: node, Finder: &devholder.Finder{Runner: runner}, Pods: engine.pods, Runner: runner},
		Orphans: &orphan.Inspector{Kubelet: node, MinimumAge: orphanAge},
	}
	runtime := &cri.Client{Socket: node.RuntimeSocket}
	d.Volumes.Runtime = runtime // which says that there is none
	if node.PID != 0 {
		engine.pods.runtime, d.Devices.Runtime, d.Orphans.Runtime, d.Owners, d.Runtime = runtime, runtime, runtime, runtime, runtime
	}
	if specs != nil {
		d.Volumes.Pods, d.Orphans.Pods, d.Devices.Specs = specs, specs, specs
	}
	// Sources of pods that do not answer are left out: a fault of a pod that only they know is refused.
	var err error
	if specs == nil {
		if engine.pods.specs, err = podsOfKubelet(ctx, node); err != nil {
			engine.notes = append(engine.notes, err.Error())
		}
	}
	if engine.pods.runtime != nil {
		if _, err := callWithin(ctx, nameTimeout, runtime.Sandboxes); err != nil {
			engine.pods.runtime = nil
			engine.notes = append(engine.notes, "ask the container runtime for pods: "+err.Error())
		}
	}
	d.Specs = engine.pods.specs.Listed
	engine.registry, err = registry.New(d)
	return engine, err
}

// whyUnknown says why sources of pods do not answer; empty if all have answered.
func (e *localEngine) whyUnknown() string {
	if len(e.notes) == 0 {
		return ""
	}
	return " (" + strings.Join(e.notes, "; ") + ")"
}

// nodeNameOf is the name that the pods' specs have for this node, if it is one; else that of the machine.
func nodeNameOf(specs podFile) string {
	name := ""
	for _, pod := range specs {
		if pod == nil || pod.Spec.NodeName == "" || name != "" && pod.Spec.NodeName != name {
			name = ""
			break
		}
		name = pod.Spec.NodeName
	}
	if name == "" {
		name = strings.ReplaceAll(strings.ToLower(machineName()), " ", "-")
	}
	return name
}

// loadShipped adds the Operations and OperationSets that kubediag ships.
func (e *localEngine) loadShipped() error {
	files, err := operations.Files.ReadDir(".")
	taken := map[string]bool{} // some are in several files, below other comments
	for _, file := range files {
		text, err := operations.Files.ReadFile(file.Name())
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		for document, err := range manifests.Documents(text) {
			object := string(bytes.TrimSpace(document.Text[max(0, bytes.Index(document.Text, []byte("\napiVersion:"))):]))
			if err == nil && !taken[object] {
				taken[object] = true
				err = e.store.Load(bytes.NewReader(document.Text))
			}
			if err != nil {
				return fmt.Errorf("read manifest %q: %w", file.Name(), err)
			}
		}
	}
	return err
}

// PodsHere lists the pods of the node, or those of the file.
func (e *localEngine) PodsHere() []*corev1.Pod {
	if e.podsHere == nil {
		return slices.Collect(maps.Values(e.pods.specs))
	}
	return e.podsHere
}

// listPods asks for all pods of the node. The gaps are those that no source knows.
func (e *localEngine) listPods(ctx context.Context) (gaps []mountstate.Gap, err error) {
	if e.podsHere, err = e.pods.listPods(ctx, func(types.NamespacedName) bool { return true }); err != nil {
		return nil, err
	}
	uids, err := e.pods.node.PodUIDs(ctx)
	unknown := len(uids) - len(e.podsHere)
	if err != nil || unknown <= 0 {
		return nil, err
	}
	what := "the subPaths of " + verb.Count(unknown, "pod")
	return []mountstate.Gap{{What: what, Why: "neither --pods, the kubelet nor the container runtime knows them", Do: "kubectl get pods -A -o json | kubediag diagnose --pods -"}}, nil
}

// singleOperationSet makes an OperationSet of one Operation, and gives its name.
func (e *localEngine) singleOperationSet(ctx context.Context, operation string) (string, error) {
	name := "only-" + operation
	if _, err := e.store.OperationSet(ctx, name); err == nil {
		return name, nil
	}
	list := []v1.Node{{ID: 0, To: []int32{1}}, {ID: 1, Operation: operation}}
	return name, e.store.Add(&v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.OperationSetSpec{AdjacencyList: list}})
}

// planDiagnosis runs a Diagnosis up to its plan, and changes nothing. The actions are those of the plan, as the status
// does not have them. Its journal is of no use afterwards.
func (e *localEngine) planDiagnosis(
	ctx context.Context, spec v1.DiagnosisSpec, o pipeline.Observer,
) (d *v1.Diagnosis, planned []fault.Action, err error) {
	dir, err := os.MkdirTemp("", "kubediag-plan-")
	if err != nil {
		return nil, nil, fmt.Errorf("make directory for journal: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	spec.Mode, spec.PlanHash = v1.ModePlan, ""
	d, err = e.runDiagnosis(ctx, spec, pipeline.Options{DataRoot: dir, Volatile: true, Observer: o})
	if err == nil && d.Status.Outcome == v1.OutcomePlanned {
		planned, err = pipeline.Planned(dir, string(d.UID))
	}
	return d, planned, err
}

// repairDiagnosis runs a Diagnosis that may carry out its plan if the plan has this hash. With an empty hash it may carry
// out any plan.
func (e *localEngine) repairDiagnosis(ctx context.Context, spec v1.DiagnosisSpec, hash string, r *repairRoot, o pipeline.Observer) (*v1.Diagnosis, error) {
	spec.Mode, spec.PlanHash = v1.ModeRecover, hash
	return e.runDiagnosis(ctx, spec, pipeline.Options{DataRoot: filepath.Join(r.dir, ownDirName), Exclusive: r.holdLock, Observer: o})
}

func (e *localEngine) runDiagnosis(ctx context.Context, spec v1.DiagnosisSpec, o pipeline.Options) (diagnosis *v1.Diagnosis, err error) {
	o.Node, o.Registry, o.Store = e.pods.name, e.registry, &e.store
	if o.Boot, err = sys.BootID(); err != nil {
		return nil, err
	}
	x, err := pipeline.New(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	e.diagnosisCount++
	spec.NodeName = e.pods.name
	diagnosis = &v1.Diagnosis{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "Diagnosis"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kubediag-%d-%d", os.Getpid(), e.diagnosisCount)}, Spec: spec,
	}
	if err := e.store.Add(diagnosis); err != nil {
		return nil, err
	}
	return x.Run(ctx, diagnosis.DeepCopy())
}
