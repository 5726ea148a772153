// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

var (
	// ErrNotFound is the error of a Store, wrapped, if there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrGone is the error of Store.Save, wrapped, if the Diagnosis no longer exists or has another UID.
	ErrGone = errors.New("diagnosis is gone")
	// errVolatile refuses a run whose journal would not outlive a crash.
	errVolatile = errors.New("only a plan may be made without a journal on the disk")
	// ErrDeleted is the cause with which the context of Run is cancelled when the Diagnosis was deleted.
	ErrDeleted = errors.New("diagnosis was deleted")
)

// Store is where definitions are read and statuses written.
type Store interface {
	// OperationSet and Operation give an error that wraps ErrNotFound if there is none of that name.
	OperationSet(ctx context.Context, name string) (*v1.OperationSet, error)
	Operation(ctx context.Context, name string) (*v1.Operation, error)
	// Save makes the status of d durable. It does not keep d. The error wraps ErrGone if there is no Diagnosis of this
	// name and UID.
	Save(ctx context.Context, d *v1.Diagnosis) error
}

// Observer is called with the progress, for people and metrics. It is called in order, must be quick, and does not keep
// d, whose status says how far things are. The end of something in an earlier process is not reported again.
type Observer interface {
	// Accepted is called when a Diagnosis is taken for the first time.
	Accepted(d *v1.Diagnosis)
	OperationEnded(d *v1.Diagnosis, run v1.OperationRun)
	ActionEnded(d *v1.Diagnosis, operation string, a ActionEnd)
	// Waiting is called when the Diagnosis waits for its approval, after that was saved.
	Waiting(d *v1.Diagnosis)
	// Ended is called at the end, after it was saved.
	Ended(d *v1.Diagnosis)
}

// External makes processors that are not built in. Their names are those of their Operations.
type External interface {
	Server(operation string, u *url.URL) processor.Processor
	Script(operation, text string, argKeys []string, resultKey string) processor.Processor
}

// ActionEnd is an action that was done or that failed.
type ActionEnd struct {
	v1.Action
	// Waiting: it has Failed only because it may not be done yet, and has changed nothing.
	Waiting bool
}

// Options are the parts of a Runner.
type Options struct {
	// Node is the name of the node.
	Node string
	// Boot is the name of the boot that the node is in.
	Boot string
	// DataRoot is the directory for journals and full results. It must exist.
	DataRoot string
	// Registry holds the built-in processors.
	Registry *Registry
	Store    Store
	// Approvals is nil without an API server.
	Approvals Approvals
	// Observer may be nil.
	Observer Observer
	// External makes the processors of Operations that are not built in. Nil: only built-in ones run.
	External External
	// Exclusive, if it is set, is called before the actions of a plan, and release after them: no other program
	// of the node repairs meanwhile. An error is that of the attempt.
	Exclusive func(ctx context.Context) (release func(), err error)
	// Gate can hold repairs. Nil: nothing is held.
	Gate repair.Gate
	// Volatile is for a DataRoot that is removed when the run is over: the Runner does not wait until its files are on the disk. Then it
	// makes plans alone, and carries out none.
	Volatile bool
	// DefaultDeadline is that of a Diagnosis which names none. 0: 30 minutes.
	DefaultDeadline time.Duration
}

// Runner runs Diagnoses. It may be used from several goroutines.
type Runner struct {
	Options
	files   *files
	running sync.Map // UIDs
	calls   *repair.Calls
	hook    func(before bool, r record) // tests look at every record as it is written
}

// crashHook is the hook of every Runner. Only a program that was built with the tag crash has one.
var crashHook func(before bool, r record)

// New makes a Runner. The caller closes it.
func New(o Options) (*Runner, error) {
	if o.DefaultDeadline == 0 {
		o.DefaultDeadline = 30 * time.Minute
	}
	if o.Observer == nil {
		o.Observer = Discard{}
	}
	base, err := filepath.Abs(o.DataRoot)
	if err != nil {
		return nil, fmt.Errorf("opening data root: %w", err)
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return nil, fmt.Errorf("opening data root: %w", err)
	}
	for _, dir := range []string{journalDir, artifactDir} {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			root.Close()
			return nil, fmt.Errorf("making %q: %w", dir, err)
		}
	}
	return &Runner{Options: o, files: &files{root: root, base: base, volatile: o.Volatile}, calls: repair.NewCalls(), hook: crashHook}, nil
}

// Close releases the data root. Runs must have ended.
func (r *Runner) Close() error { return r.files.root.Close() }

// Abandoned is how many processors are still at work although their time was up.
func (r *Runner) Abandoned() int64 { return int64(r.calls.Abandoned()) }

// Forget removes the journals and full results of all Diagnoses but those to keep and those that run.
func (r *Runner) Forget(keep map[types.UID]bool) error {
	var errs []error
	for _, dir := range []string{journalDir, artifactDir} {
		entries, err := fs.ReadDir(r.files.root.FS(), dir)
		errs = append(errs, err)
		for _, e := range entries {
			uid := strings.TrimSuffix(strings.TrimSuffix(e.Name(), partEnd), journalEnd)
			if _, running := r.running.Load(uid); !running && !keep[types.UID(uid)] {
				errs = append(errs, r.files.remove(uid))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing what is not kept: %w", err)
	}
	return nil
}

// Run runs a Diagnosis to its end, or resumes one that was begun, and returns it as it was stored last. One that has
// ended is returned as it is. d is not changed.
//
// An error means that the end is not stored: the status or the journal could not be written, a definition could not be
// read, or ctx was cancelled, whose cause it then wraps. A *WaitingError: the Diagnosis waits for its approval. Run can
// be called again and goes on from its journal, except that a Diagnosis which is gone or was deleted has nothing to go
// on with.
func (r *Runner) Run(ctx context.Context, d *v1.Diagnosis) (*v1.Diagnosis, error) {
	d = d.DeepCopy()
	if d.Ended() || d.Spec.Mode == v1.ModeRecord {
		return d, nil
	}
	if r.Volatile && d.Spec.Mode != v1.ModePlan {
		return d, fmt.Errorf("running Diagnosis: %w", errVolatile)
	}
	x := &execution{runner: r, d: d, status: &statusWriter{store: r.Store, d: d, stored: d.Status.DeepCopy()}}
	var end report
	run, err := x.begin(ctx)
	if err == nil {
		end, err = run.paths(ctx)
	}
	end, err = x.end(end, err)
	if ctx.Err() != nil {
		return d, fmt.Errorf("running Diagnosis: %w", context.Cause(ctx))
	}
	_, setting := x.limit()
	t := end.terminalError(setting)
	if err != nil && !errors.As(err, &t) {
		return d, err
	}
	x.status.conclude(end, t, r.files)
	if err := x.status.save(ctx); err != nil {
		return d, err
	}
	r.Observer.Ended(d)
	return d, nil
}

// Discard is an Observer that does nothing. One that observes little embeds it.
type Discard struct{}

// Accepted does nothing.
func (Discard) Accepted(*v1.Diagnosis) {}

// OperationEnded does nothing.
func (Discard) OperationEnded(*v1.Diagnosis, v1.OperationRun) {}

// ActionEnded does nothing.
func (Discard) ActionEnded(*v1.Diagnosis, string, ActionEnd) {}

// Waiting does nothing.
func (Discard) Waiting(*v1.Diagnosis) {}

// Ended does nothing.
func (Discard) Ended(*v1.Diagnosis) {}
