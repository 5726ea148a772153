// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// evil is a name that a pod may have given to a directory: a subPath may be called so.
const evil = "x\x1b]0;pwned\x07\x1b[2J\u202e\u009b31m\x7f\r\xff"

// hostile is a recoverer all of whose texts come from an attacker.
type hostile struct{ *unmounter }

func (h hostile) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	p, err := h.unmounter.Plan(ctx, r)
	for i := range p.Actions {
		a := &p.Actions[i]
		a.Target, a.Safety, a.Loss, a.Mount.Root, a.Mount.Point = evil, evil, evil, evil, evil
	}
	return p, err
}

func (h hostile) Open() repair.Apply { return h.apply }

func (h hostile) apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	_, err := h.unmounter.apply(ctx, r, a)
	return fault.Applied{Message: evil}, err
}

// Nothing that a pod can choose reaches a status in a form that a terminal would act on.
func TestTheStatusIsPrintable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := stale(7, false)
	f.Mount.Root, f.Mount.Point, f.Mount.FSType, f.Holder, f.Container, f.Volume, f.Evidence = evil, evil, evil, evil, evil, evil, []string{"mountinfo: " + evil}
	w.replace(returns(processor.Result{Values: map[string]string{"collector.system.mountinfo": evil}, Findings: []fault.Finding{f}}, nil).as("mountInfoCollector"))
	w.replace(Step{Family: hostile{&unmounter{kernel: w.kernel, failVerify: always(errors.New(evil))}}})
	d := w.run(t, diagnosis())
	if len(d.Status.Faults) < 2 || len(d.Status.Operations) != 4 || len(d.Status.Operations[3].Actions) != 2 {
		t.Fatalf("status: %+v", d.Status)
	}
	for i, saved := range w.saved {
		text, err := json.Marshal(saved)
		must(t, err)
		// JSON escapes what is below a space: see all as a client does that has decoded it.
		// Two backslashes are one that the agent has written.
		s := string(text)
		escapes := strings.ReplaceAll(s, `\\`, "")
		if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.Contains(escapes, `\u00`) || strings.Contains(escapes, `\r`) {
			t.Errorf("status %d: %s", i, s)
		}
	}
}
