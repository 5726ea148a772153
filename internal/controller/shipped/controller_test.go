// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package shipped

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/manifests"
)

// releaseWorld is a reconciler of one release, with an API server in memory.
type releaseWorld struct{ *Reconciler }

func newReleaseWorld(t *testing.T, objects ...client.Object) *releaseWorld {
	t.Helper()
	all, err := loadShipped()
	must(t, err)
	return &releaseWorld{&Reconciler{
		Client: kubeclienttest.Builder(t).WithObjects(objects...).Build(), Version: "v1.0.0", shipped: all,
	}}
}

func (w *releaseWorld) reconcile(t *testing.T) {
	t.Helper()
	if _, err := w.Reconcile(t.Context(), allObjects); err != nil {
		t.Fatal(err)
	}
}

func (w *releaseWorld) readSet(t *testing.T) *v1.OperationSet {
	t.Helper()
	set := &v1.OperationSet{}
	must(t, w.Client.Get(t.Context(), client.ObjectKey{Name: v1.DefaultOperationSet}, set))
	return set
}

// shipGraph ships another graph for the set auto.
func (w *releaseWorld) shipGraph(version string, operations ...string) {
	w.Version = version
	i := slices.IndexFunc(w.shipped, func(o shippedObject) bool {
		return o.objectKind() == "OperationSet" && o.GetName() == v1.DefaultOperationSet
	})
	next := w.shipped[i].deepCopy()
	next.takeSpec(shippedObject{&v1.OperationSet{Spec: chainSpec(operations...)}})
	w.shipped = slices.Clone(w.shipped)
	w.shipped[i] = next
}

func chainSpec(operations ...string) v1.OperationSetSpec {
	spec := v1.OperationSetSpec{AdjacencyList: []v1.Node{{}}}
	for i, name := range operations {
		spec.AdjacencyList[i].To = []int32{int32(i + 1)}
		spec.AdjacencyList = append(spec.AdjacencyList, v1.Node{ID: int32(i + 1), Operation: name})
	}
	return spec
}

func operationNames(set *v1.OperationSet) (all []string) {
	for _, n := range set.Spec.AdjacencyList[1:] {
		all = append(all, n.Operation)
	}
	return all
}

// TestAllIsCreated with its marks, once, and a second look writes nothing.
func TestAllIsCreated(t *testing.T) {
	t.Parallel()
	w := newReleaseWorld(t)
	w.reconcile(t)
	before := map[string]string{}
	for range 2 {
		for _, o := range w.shipped {
			live := o.newEmpty()
			must(t, w.Client.Get(t.Context(), client.ObjectKey{Name: o.GetName()}, live))
			if live.GetLabels()[v1.LabelVersion] != "v1.0.0" || live.GetAnnotations()[v1.AnnotationSpecHash] == "" {
				t.Errorf("%s %s: %v %v", o.objectKind(), o.GetName(), live.GetLabels(), live.GetAnnotations())
			}
			key := o.objectKind() + o.GetName()
			if version, known := before[key]; known && version != live.GetResourceVersion() {
				t.Errorf("%s was written again", key)
			}
			before[key] = live.GetResourceVersion()
		}
		w.reconcile(t)
	}
	if len(before) != len(w.shipped) || len(before) < 20 {
		t.Errorf("%d objects of %d", len(before), len(w.shipped))
	}
}

// TestNextRelease changes what the last one wrote.
func TestNextRelease(t *testing.T) {
	t.Parallel()
	w := newReleaseWorld(t)
	w.reconcile(t)
	live := w.readSet(t)
	live.Labels["team"] = "ours" // a user's label is not a user's spec
	must(t, w.Client.Update(t.Context(), live))
	w.shipGraph("v1.1.0", "auto-collector", "auto-recover")
	w.reconcile(t)
	set := w.readSet(t)
	if diff := cmp.Diff([]string{"auto-collector", "auto-recover"}, operationNames(set)); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if set.Labels[v1.LabelVersion] != "v1.1.0" || set.Labels["team"] != "ours" {
		t.Errorf("labels %v", set.Labels)
	}
	must(t, w.Client.Delete(t.Context(), set))
	w.reconcile(t)
	if operationNames(w.readSet(t))[1] != "auto-recover" {
		t.Error("what was deleted is not as it ships")
	}
}

// TestUsersObjectsStay when a release ships objects of the same names.
func TestUsersObjectsStay(t *testing.T) {
	t.Parallel()
	mine := &v1.OperationSet{Spec: chainSpec("mine")}
	mine.Name = v1.DefaultOperationSet
	for name, change := range map[string]func(t *testing.T, w *releaseWorld){
		"written by a user": func(t *testing.T, w *releaseWorld) {
			must(t, w.Client.Create(t.Context(), mine.DeepCopy()))
		},
		"changed by a user": func(t *testing.T, w *releaseWorld) {
			w.reconcile(t)
			set := w.readSet(t)
			set.Spec = chainSpec("mine")
			must(t, w.Client.Update(t.Context(), set))
		},
		"kept by a user": func(t *testing.T, w *releaseWorld) {
			w.shipGraph("v0.9.0", "mine")
			w.reconcile(t)
			set := w.readSet(t)
			set.Annotations[v1.AnnotationManaged] = "false"
			must(t, w.Client.Update(t.Context(), set))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newReleaseWorld(t)
			change(t, w)
			before := w.readSet(t)
			for _, version := range []string{"v1.1.0", "v1.2.0"} {
				w.shipGraph(version, "auto-collector", version)
				w.reconcile(t)
			}
			if diff := cmp.Diff(before, w.readSet(t)); diff != "" {
				t.Errorf("it was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestWhatAUserAppliedUnchanged becomes ours: it is what ships.
func TestWhatAUserAppliedUnchanged(t *testing.T) {
	t.Parallel()
	w := newReleaseWorld(t)
	i := slices.IndexFunc(w.shipped, func(o shippedObject) bool {
		return o.objectKind() == "OperationSet" && o.GetName() == v1.DefaultOperationSet
	})
	must(t, w.Client.Create(t.Context(), w.shipped[i].deepCopy().Object))
	w.reconcile(t)
	if set := w.readSet(t); set.Annotations[v1.AnnotationSpecHash] == "" {
		t.Errorf("annotations %v", set.Annotations)
	}
	w.shipGraph("v1.1.0", "auto-recover")
	w.reconcile(t)
	if got := operationNames(w.readSet(t)); len(got) != 1 {
		t.Errorf("operations %v", got)
	}
}

// TestRoleNamesWhatShips: the manager may change these objects and no other.
func TestRoleNamesWhatShips(t *testing.T) {
	t.Parallel()
	roles, err := manifests.Read[rbacv1.ClusterRole](os.DirFS("../../../config/rbac/manager"), "ClusterRole")
	must(t, err)
	got, want := map[string]bool{}, map[string]bool{}
	for _, rule := range roles[0].Rules {
		for _, resource := range rule.Resources {
			if !slices.Contains(rule.Verbs, "patch") || resource != "operations" && resource != "operationsets" {
				continue
			}
			if len(rule.ResourceNames) == 0 {
				t.Errorf("the manager may change all %s", resource)
			}
			for _, name := range rule.ResourceNames {
				got[resource+" "+name] = true
			}
		}
	}
	for _, o := range newReleaseWorld(t).shipped {
		want[strings.ToLower(o.objectKind())+"s "+o.GetName()] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("names (-shipped +role):\n%s", diff)
	}
}

// TestWhatShipsIsValid: every set has a graph of Operations that ship, and the Operations come first.
func TestWhatShipsIsValid(t *testing.T) {
	t.Parallel()
	operations := map[string]bool{"": true}
	for _, o := range newReleaseWorld(t).shipped {
		switch o := o.Object.(type) {
		case *v1.Operation:
			operations[o.Name] = true
			if _, errs := o.Spec.Call(); len(errs) > 0 {
				t.Errorf("%s: %v", o.Name, errs)
			}
		case *v1.OperationSet:
			var nodes []graph.Node
			for _, n := range o.Spec.AdjacencyList {
				nodes = append(nodes, graph.Node{ID: n.ID, To: n.To, Operation: n.Operation})
				if !operations[n.Operation] {
					t.Errorf("%s: Operation %q does not ship", o.Name, n.Operation)
				}
			}
			if _, err := graph.New(nodes); err != nil {
				t.Errorf("%s: %v", o.Name, err)
			}
		}
	}
}

// TestFailuresAreReportedTogether: one object that cannot be written does not keep the others from it.
func TestFailuresAreReportedTogether(t *testing.T) {
	t.Parallel()
	w := newReleaseWorld(t)
	w.Client = failingClient{w.Client}
	if _, err := w.Reconcile(t.Context(), allObjects); !errors.Is(err, errRefused) {
		t.Errorf("error %v", err)
	}
	sets := &v1.OperationSetList{}
	if err := w.Client.List(t.Context(), sets); err != nil || len(sets.Items) < 5 {
		t.Errorf("%d sets, %v", len(sets.Items), err)
	}
}

var errRefused = errors.New("refused")

// failingClient refuses to create the set auto.
type failingClient struct{ client.Client }

func (f failingClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if o.GetName() == v1.DefaultOperationSet {
		return errRefused
	}
	return f.Client.Create(ctx, o, opts...)
}

var must = kerneltest.Must
