// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/external"
)

// fakeStore is a Store that remembers every status.
type fakeStore struct {
	mu         sync.Mutex
	sets       map[string]*v1.OperationSet
	operations map[string]*v1.Operation
	saved      []v1.DiagnosisStatus
	// fail, where it is set, may refuse the n-th save.
	fail func(n int) error
	n    int
}

func (s *fakeStore) OperationSet(_ context.Context, name string) (*v1.OperationSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.sets[name]; set != nil {
		return set.DeepCopy(), nil
	}
	return nil, fmt.Errorf("looking for %q: %w", name, ErrNotFound)
}

func (s *fakeStore) Operation(_ context.Context, name string) (*v1.Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op := s.operations[name]; op != nil {
		return op.DeepCopy(), nil
	}
	return nil, fmt.Errorf("looking for %q: %w", name, ErrNotFound)
}

func (s *fakeStore) Save(_ context.Context, d *v1.Diagnosis) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.fail != nil {
		if err := s.fail(s.n); err != nil {
			return err
		}
	}
	s.saved = append(s.saved, *d.Status.DeepCopy())
	return nil
}

// last is the Diagnosis as it was saved last.
func (s *fakeStore) last(d *v1.Diagnosis) *v1.Diagnosis {
	s.mu.Lock()
	defer s.mu.Unlock()
	d = d.DeepCopy()
	if len(s.saved) > 0 {
		d.Status = *s.saved[len(s.saved)-1].DeepCopy()
	}
	return d
}

func (s *fakeStore) put(set *v1.OperationSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[set.Name] = set
}

// chain is an OperationSet of operations in a row, ready.
func chain(operations ...string) *v1.OperationSet {
	set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Generation: 3}}
	set.Spec.AdjacencyList = []v1.Node{{}}
	for i, name := range operations {
		set.Spec.AdjacencyList[i].To = []int32{int32(i + 1)}
		set.Spec.AdjacencyList = append(set.Spec.AdjacencyList, v1.Node{ID: int32(i + 1), Operation: name})
	}
	set.Status.Ready, set.Status.ObservedGeneration = true, 3
	return set
}

// builtIn is an Operation in the flat form of the walkthrough.
func builtIn(name, processor string) *v1.Operation {
	path, scheme, timeout := "/processor/"+processor, "http", int32(60)
	return &v1.Operation{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.OperationSpec{Processor: v1.Processor{Path: &path, Scheme: &scheme, TimeoutSeconds: &timeout}},
	}
}

// world is a Runner with all that it needs.
type world struct {
	*fakeStore
	kernel   *kernel
	dir      string
	steps    []Step
	external external.Processors
	options  func(*Options)
}

// newWorld has the four operations of the walkthrough, with processors that are quick.
func newWorld(t *testing.T) *world {
	k := newKernel(7, 8)
	w := &world{
		fakeStore: &fakeStore{sets: map[string]*v1.OperationSet{}, operations: map[string]*v1.Operation{}},
		kernel:    k, dir: t.TempDir(),
		steps: []Step{
			returns(processor.Result{Values: map[string]string{"collector.kubernetes.pod.detail": "{}"}}, nil).as("podDetailCollector"),
			returns(processor.Result{Values: map[string]string{"collector.system.mountinfo": "7 8"}}, nil).as("mountInfoCollector"),
			returns(processor.Result{
				Values:   map[string]string{"diagnoser.kubernetes.subpath_remount.result": "pod met a bug of subpath-remounting"},
				Findings: []fault.Finding{stale(7, false), stale(8, false)},
			}, nil).as("subpathRemountDiagnoser"),
			{Family: &unmounter{kernel: k}},
		},
	}
	w.put(chain("pod-detail-collector", "mount-info-collector", "subpath-remount-diagnoser", "subpath-remount-recover"))
	for name, processor := range map[string]string{
		"pod-detail-collector": "podDetailCollector", "mount-info-collector": "mountInfoCollector",
		"subpath-remount-diagnoser": "subpathRemountDiagnoser", "subpath-remount-recover": "unmounter",
	} {
		w.operations[name] = builtIn(name, processor)
	}
	return w
}

// replace puts a processor in the place of the one of its name.
func (w *world) replace(s Step) {
	i := slices.IndexFunc(w.steps, func(old Step) bool { return old.Name() == s.Name() })
	w.steps[i] = s
}

// start makes a Runner, as a process that starts does.
func (w *world) start(t *testing.T) *Runner {
	t.Helper()
	registry, err := NewRegistry(w.steps...)
	must(t, err)
	client, err := external.NewClient("")
	must(t, err)
	w.external.Node, w.external.HTTP = "my-node", client
	o := Options{Node: "my-node", DataRoot: w.dir, Registry: registry, Store: w.fakeStore, External: &w.external}
	if w.options != nil {
		w.options(&o)
	}
	e, err := New(o)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// run runs a Diagnosis and gives it as it was saved last.
func (w *world) run(t *testing.T, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	got, err := w.start(t).Run(t.Context(), d)
	must(t, err)
	return got
}

func diagnosis() *v1.Diagnosis {
	return &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d", UID: types.UID("29da79e5-386c-4e0d-82c1-215f93ff955d"), Generation: 1},
		Spec: v1.DiagnosisSpec{
			OperationSet: "set", NodeName: "my-node", PodReference: &v1.PodReference{Namespace: "default", Name: "p"},
			Parameters: map[string]string{"param.x": "1"},
		},
	}
}
