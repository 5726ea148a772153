// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/store"
)

// story prints each step that has happened, with the time that it took.
type story struct {
	out    io.Writer
	screen terminal.Screen
	dir    string // of the demo; it is left out of all texts
	number int    // of the last step in this act
	began  time.Time
}

// mark stands before a step.
type mark string

const (
	good  mark = "✓"
	bad   mark = "✗"
	plain mark = " "
)

// nothing is the loss of an action without one.
const nothing = "nothing"

// line prints a line as it is.
func (s *story) line(text string) { fmt.Fprintln(s.out, text) }

// beginAct begins an act.
func (s *story) beginAct(title string) {
	s.number, s.began = 0, time.Now()
	s.line(s.screen.Paint(terminal.Bold, title))
}

// printStep prints a step that has just happened, and how long it took since the one before.
func (s *story) printStep(m mark, format string, args ...any) {
	s.number++
	took := time.Since(s.began)
	s.began = time.Now()
	sign, colour := string(m), terminal.Dim
	switch m {
	case good:
		colour = terminal.Green
	case bad:
		colour = terminal.Red
	}
	if s.screen.ASCII {
		sign = map[mark]string{good: "+", bad: "x", plain: " "}[m]
	}
	text := fmt.Sprintf("%d %s (%s)", s.number, s.clean(fmt.Sprintf(format, args...)), render.Duration(took))
	fmt.Fprint(s.out, s.screen.Marked("", sign, colour, text))
}

// below prints a line that belongs to the last step.
func (s *story) below(format string, args ...any) {
	const indent = "    "
	fmt.Fprint(s.out, s.screen.Wrap(indent, printable.Quoted(s.clean(fmt.Sprintf(format, args...))), len(indent)))
}

// clean shortens what is the same in each run.
func (s *story) clean(text string) string {
	return strings.NewReplacer(s.dir+"/", "/", podUID, "UID", volumePodUID, "UID").Replace(text)
}

// reason is the kernel's answer in an error, without the call and the path.
func reason(err error) string {
	if number := sys.Errno(0); errors.As(err, &number) {
		return number.Error()
	}
	return err.Error()
}

// firstClause is a sentence up to its first comma, colon or semicolon.
func firstClause(text string) string {
	if i := strings.IndexAny(text, ",:;"); i > 0 {
		return text[:i]
	}
	return text
}

// diagnosisRun is a Diagnosis that runs with the pipeline and the processors of the agent.
type diagnosisRun struct {
	pipeline.Discard

	story   *story
	planned bool // whether the plan is printed
}

// run has the manifests' Diagnosis of that name run. It prints the fault and the plan before anything of it is done.
func (r *diagnosisRun) run(ctx context.Context, root, name string, deps registry.Deps, manifests ...string) (*v1.Diagnosis, error) {
	objects := store.Memory{Saved: r.printPlan}
	for _, manifest := range manifests {
		if err := objects.Load(strings.NewReader(manifest)); err != nil {
			return nil, err
		}
	}
	node, err := kubelet.Local(root)
	if err != nil {
		return nil, err
	}
	deps.Kubelet = node
	processors, err := registry.New(deps)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(r.story.dir, "kubediag-"+name)
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	runner, err := pipeline.New(pipeline.Options{Node: nodeName, DataRoot: data, Registry: processors, Store: &objects, Observer: r})
	if err != nil {
		return nil, err
	}
	d, err := objects.Diagnosis(podNamespace, name)
	if err != nil {
		return nil, err
	}
	if d, err = runner.Run(ctx, d); err != nil {
		return nil, err
	}
	if d.Status.Phase != v1.DiagnosisSucceeded {
		return nil, errors.Join(fmt.Errorf("the Diagnosis ended with phase %q", d.Status.Phase), printDiagnoses(os.Stdout, d))
	}
	return d, nil
}

// printPlan prints the fault and the plan against it when the plan is stored.
func (r *diagnosisRun) printPlan(d *v1.Diagnosis) {
	for _, run := range d.Status.Operations {
		if r.planned || run.Phase != v1.OperationRunning || len(run.Actions) == 0 || run.Actions[0].Phase != v1.ActionPlanned {
			continue
		}
		r.planned = true
		found := d.Status.Faults[0]
		var kinds, lost []string
		for _, a := range run.Actions {
			kinds = append(kinds, a.Kind)
			if l := firstClause(a.Loss); l != nothing {
				lost = append(lost, strings.TrimPrefix(l, nothing+" but "))
			}
		}
		if len(lost) == 0 {
			lost = []string{nothing}
		}
		r.story.printStep(plain, "Diagnosis finds %s, plans %s", found.Code, strings.Join(kinds, ", "))
		r.story.below("%s; lost: %s", firstClause(found.Evidence[0]), strings.Join(slices.Compact(lost), ", "))
	}
}
