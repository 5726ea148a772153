// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/sentinel"
)

var byPolicy = v1.Decision{Mode: "Automatic", Policies: []string{"subpaths"}, Reason: "allowed by policy subpaths"}

// repair is one of the n-th mount.
func repair(n int, err error) sentinel.Repair {
	m := fault.Mount{ID: uint64(n + 1), Namespace: 4026531840, Point: fmt.Sprintf("/kubelet/%d", n)}
	f := fault.Finding{
		Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: "team", Name: fmt.Sprintf("web-%d", n), UID: "u"}, Container: "app",
		Volume: "config", Mount: m, Evidence: []string{"nlink 0"},
	}
	r := sentinel.Repair{
		Fault: f, Ended: time.Now(), Err: err, Proof: "the mount is gone",
		Action: fault.Action{Kind: fault.Unmount, Target: m.Point, Mount: &m, For: []fault.Key{f.Key()}, Safety: "its source is gone", Lossless: true},
		Calls:  []calls.Call{{Name: "umount2", Arguments: m.Point + " MNT_DETACH", Result: calls.OK}},
	}
	if err != nil {
		r.Proof, r.Calls[0].Result = "", err.Error()
	}
	return r
}

// server is an API server that fails on demand.
type server struct {
	client.Client
	down    atomic.Bool
	half    atomic.Bool // takes objects, and no status
	creates atomic.Int32

	mu      sync.Mutex
	objects map[string]*v1.Diagnosis
}

var errDown = apierrors.NewServiceUnavailable("down")

func newServer() *server { return &server{objects: map[string]*v1.Diagnosis{}} }

func (s *server) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if s.down.Load() {
		return errDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := o.(*v1.Diagnosis)
	if !ok || d.Namespace != "kubediag" {
		return apierrors.NewBadRequest("not a record")
	}
	if s.objects[d.Name] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "diagnoses"}, d.Name)
	}
	s.creates.Add(1)
	d.Status = v1.DiagnosisStatus{}
	s.objects[d.Name] = d.DeepCopy()
	return nil
}

func (s *server) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.objects[key.Name]
	d, ok := into.(*v1.Diagnosis)
	if found == nil || !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "diagnoses"}, key.Name)
	}
	found.DeepCopyInto(d)
	return nil
}

func (s *server) Status() client.SubResourceWriter { return statuses{server: s} }

type statuses struct {
	client.SubResourceWriter
	server *server
}

func (w statuses) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	s := w.server
	if s.down.Load() || s.half.Load() {
		return errDown
	}
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Unmarshal(text, s.objects[o.GetName()])
}

// all are the records, in the order of their names.
func (s *server) all() []*v1.Diagnosis {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.objects), func(a, b *v1.Diagnosis) int { return strings.Compare(a.Name, b.Name) })
}

// start runs a recorder in a directory until the function is called.
func (s *server) start(t *testing.T, dir string) (r *Recorder, stop func()) {
	t.Helper()
	r, err := New(Options{Node: "n1", Namespace: "kubediag", DataRoot: dir, Client: s, Reader: s, Log: logr.Discard()})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := errors.Join(<-done, r.Close()); err != nil {
			t.Error(err)
		}
	}
}

// left are the names of the files that wait.
func left(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, spoolDir, "*"))
	must(t, err)
	return names
}

// TestRecord: one repair is one Diagnosis that has ended, with all that there is to say.
func TestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		r, stop := s.start(t, dir)
		defer stop()
		name := r.Add(repair(7, nil), byPolicy)
		failed := r.Add(repair(8, errors.New("device or resource busy")), byPolicy)
		synctest.Wait()
		d := &v1.Diagnosis{}
		must(t, s.Get(t.Context(), client.ObjectKey{Namespace: "kubediag", Name: name}, d))
		st := d.Status
		if d.Spec.Mode != v1.ModeRecord || d.Spec.NodeName != "n1" || d.Spec.PodReference.Name != "web-7" || d.Labels[v1.LabelOrigin] != v1.OriginSentinel ||
			d.Labels[v1.LabelNode] != "n1" {
			t.Errorf("labels %v, spec %+v", d.Labels, d.Spec)
		}
		if st.Phase != v1.DiagnosisSucceeded || st.Outcome != v1.OutcomeHealed || st.Target != "pod team/web-7" || st.Repeats != nil ||
			st.Summary != "Repaired StaleSubPath on its own (container app, volume config, pod team/web-7): the mount is gone" {
			t.Errorf("status %+v", st)
		}
		if st.Plan == nil || len(st.Plan.Hash) != 64 || !st.Plan.Lossless || st.Decision.Policies[0] != "subpaths" ||
			len(st.Faults) != 1 || st.Faults[0].State != v1.FaultHealed || st.Faults[0].Evidence[0] != "nlink 0" {
			t.Errorf("plan %+v, decision %+v, faults %+v", st.Plan, st.Decision, st.Faults)
		}
		a := st.Operations[0].Actions[0]
		if a.Phase != v1.ActionDone || a.Message != "the mount is gone" || len(a.Calls) != 1 || a.Calls[0] !=
			(v1.ActionCall{Name: "umount2", Arguments: "/kubelet/7 MNT_DETACH", Result: "ok"}) {
			t.Errorf("action %+v", a)
		}
		must(t, s.Get(t.Context(), client.ObjectKey{Namespace: "kubediag", Name: failed}, d))
		st = d.Status
		if st.Phase != v1.DiagnosisFailed || st.Outcome != v1.OutcomeFaultFound || st.Operations[0].Actions[0].Calls[0].Result != "device or resource busy" {
			t.Errorf("status %+v", st)
		}
		if names := left(t, dir); len(names) > 0 {
			t.Errorf("left on the disk: %q", names)
		}
	})
}

// TestStorm: a thousand repairs within seconds make a handful of Diagnoses, and none is lost from the count.
func TestStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		r, stop := s.start(t, dir)
		for n := range 1000 {
			var err error
			if n%100 == 99 {
				err = errors.New("busy")
			}
			r.Add(repair(n, err), byPolicy)
			time.Sleep(3 * time.Millisecond)
		}
		synctest.Wait()
		if got := len(s.all()); got != perWindow {
			t.Errorf("%d records during the storm", got)
		}
		if names := left(t, dir); len(names) != 1 {
			t.Errorf("on the disk: %q", names)
		}
		time.Sleep(window)
		synctest.Wait()
		all := s.all()
		i := slices.IndexFunc(all, func(d *v1.Diagnosis) bool { return d.Status.Repeats != nil })
		if len(all) != perWindow+1 || i < 0 {
			t.Fatalf("%d records", len(all))
		}
		want := v1.Repeats{
			Count: 1000 - perWindow, Failed: 10, FirstTarget: "container app, volume config, pod team/web-6",
			LastTarget: "container app, volume config, pod team/web-999", Calls: 1000 - perWindow,
		}
		st := all[i].Status
		if *st.Repeats != want || st.Outcome != v1.OutcomeFaultFound || !strings.HasPrefix(st.Summary, "Repaired StaleSubPath 994 times on its own, and 10 of these failed") {
			t.Errorf("repeats %+v, status %+v", st.Repeats, st)
		}
		if st.StartTime.Time.Equal(st.CompletionTime.Time) || all[i].Spec.PodReference != nil {
			t.Errorf("from %s to %s", st.StartTime, st.CompletionTime)
		}
		time.Sleep(10 * window)
		if r.Add(repair(1, nil), byPolicy); len(r.windows) != 1 { // and nothing was left over
			t.Errorf("windows %v", r.windows)
		}
		stop()
		if creates := s.creates.Load(); creates != perWindow+1 && creates != perWindow+2 {
			t.Errorf("%d creates", creates)
		}
	})
}

// repairOf is a repair in a pod of a namespace.
func repairOf(namespace string, n int) sentinel.Repair {
	r := repair(n, nil)
	r.Fault.Pod.Namespace = namespace
	return r
}

// singles counts the records that are of one repair in the pods of a namespace.
func (s *server) singles(namespace string) (count int) {
	for _, d := range s.all() {
		if d.Status.Repeats == nil && d.PodNamespace() == namespace {
			count++
		}
	}
	return count
}

// TestEveryNamespaceIsRecorded: repairs of one tenant keep no repair of another from a record of its own, also not while the API server
// is away. A record of many repairs has their namespace.
func TestEveryNamespaceIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r, stop := s.start(t, t.TempDir())
		for n := range 100 {
			r.Add(repairOf("tenant", n), byPolicy)
		}
		r.Add(repairOf("shop", 0), byPolicy)
		synctest.Wait()
		if s.singles("shop") != 1 || s.singles("tenant") != perWindow {
			t.Errorf("records: %d of shop, %d of the tenant", s.singles("shop"), s.singles("tenant"))
		}
		s.down.Store(true)
		for range 2 * maxQueued / perWindow { // as many windows as fill the queue twice
			time.Sleep(window + time.Second)
			for n := range 2 * perWindow {
				r.Add(repairOf("tenant", n), byPolicy)
			}
		}
		// A repair that finds no place shares a record with the next of its namespace.
		r.Add(repairOf("shop", 1), byPolicy)
		r.Add(repairOf("shop", 2), byPolicy)
		s.down.Store(false)
		time.Sleep(2 * window)
		synctest.Wait()
		if s.singles("shop") != 3 {
			t.Errorf("%d repairs of shop have a record of their own, want 3", s.singles("shop"))
		}
		for _, d := range s.all() {
			if d.Status.Repeats != nil && d.PodNamespace() != "tenant" {
				t.Errorf("%d repairs are of namespace %q", d.Status.Repeats.Count, d.PodNamespace())
			}
		}
		stop()
	})
}

// TestServerAway: a record that the API server does not take waits on the disk, over a restart, and is sent once.
func TestServerAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		s.down.Store(true)
		r, stop := s.start(t, dir)
		for n := range 2 * perWindow {
			r.Add(repair(n, nil), byPolicy)
		}
		time.Sleep(5 * time.Second)
		stop()
		if names := left(t, dir); len(names) != perWindow+1 {
			t.Fatalf("on the disk: %q", names)
		}
		s.down.Store(false)
		s.half.Store(true) // the object is taken, and its status is not
		_, stop = s.start(t, dir)
		time.Sleep(time.Second)
		stop()
		s.half.Store(false)
		_, stop = s.start(t, dir)
		synctest.Wait()
		all := s.all()
		if len(all) != perWindow+1 || slices.ContainsFunc(all, func(d *v1.Diagnosis) bool { return d.Status.Phase != v1.DiagnosisSucceeded }) {
			t.Errorf("%d records: %+v", len(all), all)
		}
		if i := slices.IndexFunc(all, func(d *v1.Diagnosis) bool { return d.Status.Repeats != nil }); i < 0 || all[i].Status.Repeats.Count != perWindow {
			t.Error("the count is lost")
		}
		if names := left(t, dir); len(names) > 0 {
			t.Errorf("left on the disk: %q", names)
		}
		stop()
	})
}

// TestQueueIsBounded: with an API server that is away for hours, all is counted, and the disk stays as good as empty.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		s.down.Store(true)
		r, stop := s.start(t, dir)
		const minutes, each = 120, 20
		for range minutes {
			for n := range each {
				r.Add(repair(n, nil), byPolicy)
			}
			time.Sleep(window + time.Second)
		}
		if names := left(t, dir); len(names) > maxQueued+1 {
			t.Errorf("%d files", len(names))
		}
		s.down.Store(false)
		time.Sleep(2 * window)
		synctest.Wait()
		total := int32(0)
		for _, d := range s.all() {
			if d.Status.Repeats != nil {
				total += d.Status.Repeats.Count
			} else {
				total++
			}
		}
		if total != minutes*each {
			t.Errorf("%d repairs are recorded, of %d", total, minutes*each)
		}
		stop()
	})
}

// TestForeignFiles: a file that is no record is removed, and not sent.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, spoolDir), 0o700))
	for name, text := range map[string]string{
		"half.part": "{", "torn.json": `{"metadata":`, "other.json": `{"metadata":{"name":"x"}}`,
		"run.json": `{"metadata":{"name":"run","namespace":"kubediag"},"spec":{"mode":"Recover","nodeName":"n2"}}`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, spoolDir, name), []byte(text), 0o600))
	}
	s := newServer()
	r, err := New(Options{Node: "n1", Namespace: "kubediag", DataRoot: dir, Client: s, Reader: s, Log: logr.Discard()})
	must(t, err)
	defer r.Close()
	if len(r.queue) > 0 || len(left(t, dir)) > 0 {
		t.Errorf("queue %v, files %q", r.queue, left(t, dir))
	}
}

var must = kerneltest.Must
