// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// The directory of a child process, and the edge at which it kills itself.
const (
	lifeDir  = "KUBEDIAG_TEST_LIFE_DIR"
	lifeEdge = "KUBEDIAG_TEST_LIFE_EDGE"
)

// lasting is what outlives the processes: what the API server and the kernel know.
type lasting struct {
	Status  v1.DiagnosisStatus
	Writes  int
	Mounts  []uint64
	Effects map[uint64]int
}

// life is one process. An edge lies before and after everything that it does to the world.
type life struct {
	*world
	t     *testing.T
	file  string
	edges int
	last  int
}

// edge kills the process, as SIGKILL does, where its time has come.
func (l *life) edge() {
	if l.edges++; l.edges == l.last {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {}
	}
}

func (l *life) load() lasting {
	text, err := os.ReadFile(l.file)
	if err != nil {
		l.t.Fatal(err)
	}
	var w lasting
	if err := json.Unmarshal(text, &w); err != nil {
		l.t.Fatal(err)
	}
	return w
}

func (l *life) store(w lasting) {
	text, err := json.Marshal(w)
	if err == nil {
		err = os.WriteFile(l.file, text, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func (l *life) Save(_ context.Context, d *v1.Diagnosis) error {
	l.edge()
	w := l.load()
	w.Status, w.Writes = d.Status, w.Writes+1
	l.store(w)
	l.edge()
	return nil
}

// edgy is a recoverer with edges, whose kernel is the lasting one.
type edgy struct {
	*life
	unmounter
}

func (e *edgy) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	e.edge()
	e.unmounter.kernel.mounts = e.life.load().Mounts
	p, err := e.unmounter.Plan(ctx, r)
	e.edge()
	return p, err
}

func (e *edgy) Open(_ context.Context, _ processor.Request, p repair.Part) (repair.Work, error) {
	return repair.EachAlone(p, e.apply), nil
}

func (e *edgy) apply(ctx context.Context, a fault.Action) (fault.Applied, error) {
	e.edge()
	w := e.life.load()
	k := &kernel{mounts: w.Mounts, effects: w.Effects}
	done, err := (&unmounter{kernel: k}).apply(ctx, a)
	w.Mounts, w.Effects = k.mounts, k.effects
	e.life.store(w)
	e.edge()
	return done, err
}

func (e *edgy) Verify(ctx context.Context, r processor.Request, p repair.Part) (processor.Result, error) {
	e.edge()
	e.unmounter.kernel.mounts = e.life.load().Mounts
	result, err := e.unmounter.Verify(ctx, r, p)
	e.edge()
	return result, err
}

// TestLife is one life of the process that TestKilledAtEveryEdge begins. On its own it does nothing.
func TestLife(t *testing.T) {
	dir := os.Getenv(lifeDir)
	if dir == "" {
		return
	}
	last, err := strconv.Atoi(os.Getenv(lifeEdge))
	if err != nil {
		t.Fatal(err)
	}
	l := &life{world: newWorld(t), t: t, file: filepath.Join(dir, "world.json"), last: last}
	l.dir = filepath.Join(dir, "data")
	for i, s := range l.steps {
		if s.Processor != nil {
			l.steps[i].Processor = &fakeProcessor{name: s.Name(), run: func(ctx context.Context, r processor.Request) (processor.Result, error) {
				l.edge()
				defer l.edge()
				return s.Processor.Run(ctx, r)
			}}
		}
	}
	l.replace(Step{Family: &edgy{life: l, unmounter: unmounter{kernel: newKernel()}}})
	l.options = func(o *Options) { o.Store = l }
	d := diagnosis()
	d.Status = l.load().Status
	if _, err := l.start(t).Run(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// lead lets a process live in dir. It reports whether it was killed.
func lead(t *testing.T, dir string, edge int) (killed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLife$")
	// One that is killed leaves its temporary directory: in ours, that goes with it.
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, lifeDir+"="+dir, lifeEdge+"="+strconv.Itoa(edge))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return true
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// newLife makes a world with two stale mounts.
func newLife(t *testing.T) *life {
	t.Helper()
	dir := t.TempDir()
	l := &life{t: t, file: filepath.Join(dir, "world.json")}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	l.store(lasting{Mounts: []uint64{7, 8}, Effects: map[uint64]int{}})
	return l
}

// An agent that is killed with SIGKILL at any edge and started again ends the same, with one unmount of each mount.
func TestKilledAtEveryEdge(t *testing.T) {
	t.Parallel()
	undisturbed := newLife(t)
	lead(t, filepath.Dir(undisturbed.file), 0)
	want := undisturbed.load()
	if want.Status.Phase != v1.DiagnosisSucceeded || want.Status.Outcome != v1.OutcomeHealed || want.Writes != 3 {
		t.Fatalf("undisturbed: %+v", want)
	}
	edges := 0
	for edge := 1; ; edge++ {
		l := newLife(t)
		dir := filepath.Dir(l.file)
		if !lead(t, dir, edge) {
			edges = edge - 1
			break
		}
		lead(t, dir, 0)
		opts := append([]cmp.Option{
			cmpopts.IgnoreFields(lasting{}, "Writes"), cmpopts.IgnoreFields(v1.OperationRun{}, "Attempts"),
		}, ignoreTimes...)
		if diff := cmp.Diff(want, l.load(), opts...); diff != "" {
			t.Errorf("killed at edge %d (-undisturbed +resumed):\n%s", edge, diff)
		}
	}
	// Three writes, three processors, plan, two actions, verification: each with an edge before and one after.
	if edges != 2*(3+3+1+2+1) {
		t.Errorf("%d edges", edges)
	}
	again := newLife(t)
	for edge := 1; lead(t, filepath.Dir(again.file), 3); edge++ {
		if edge > edges {
			t.Fatal("does not come to an end")
		}
	}
	if got := again.load(); got.Status.Phase != v1.DiagnosisSucceeded || !cmp.Equal(got.Effects, want.Effects) {
		t.Errorf("killed at the third edge of every life: %+v", got)
	}
}
