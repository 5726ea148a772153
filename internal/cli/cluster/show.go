// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// Bounds of a MountFault on the screen: facts, and bytes of each. Its object has all of them.
const (
	maxFacts      = 3
	maxShownBytes = 140
)

// showOptions are the flags of the verb show.
type showOptions struct {
	*connection
	home    string
	verbose bool
}

func newShowCommand(conn *connection) *cobra.Command {
	o := &showOptions{connection: conn}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one fault, pod or Diagnosis: the finding, the plan, and how its repair went",
		Long: "show reads the objects about mf/NAME, diag/NAME or pod/NAME, or about NAME: the MountFault, else the Diagnosis, else the pod. It\n" +
			"has no agent look again: run does that.\n\nExit status: 0 no fault is known, 1 a fault, 2 it could not look, 3 it was refused.",
		Example:           "  kubectl kubediag show web-7d9f8b6c5-x2x9k -n shop\n  kubectl kubediag show diag/web-4k2fd -n shop",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(conn.resourceNames(v1.GroupVersion.WithKind("MountFault"))),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.newClient()
			if err != nil {
				return err
			}
			s := &subject{api: c, screen: screenOf(cmd), home: o.home, verbose: o.verbose, now: time.Now()}
			kind, name, typed := strings.Cut(args[0], "/")
			if !typed {
				kind, name = "", args[0]
			}
			if err := s.find(cmd.Context(), kind, name); err != nil {
				return err
			}
			text := s.text()
			if text == "" {
				text = s.screen.Marked("", "!", terminal.Yellow, "No MountFault and no Diagnosis is about pod "+c.namespace+"/"+name+". To look now:") +
					"  " + c.commandLine("run", "pod/"+name, "-n", c.namespace) + "\n"
			}
			if err := verb.Write(cmd.OutOrStdout(), s.screen.Text(text)); err != nil {
				return err
			}
			if len(s.faults) > 0 || s.diagnosis != nil && s.diagnosis.Status.Outcome == v1.OutcomeFaultFound {
				return verb.ErrFaults
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "show each step of a Diagnosis, and all of its plan")
	cmd.Flags().StringVar(&o.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	return cmd
}

// subject is a fault, a Diagnosis or a pod: the faults that are present, and the last Diagnosis.
type subject struct {
	api       *client
	screen    terminal.Screen
	home      string
	verbose   bool
	now       time.Time
	faults    []*v1.MountFault
	diagnosis *v1.Diagnosis
}

// find reads the objects. Without a kind, the first that has the name counts.
func (s *subject) find(ctx context.Context, kind, name string) error {
	found, diagnosis := &v1.MountFault{}, &v1.Diagnosis{}
	switch kind {
	case "":
		err := s.find(ctx, "mf", name)
		for _, next := range []string{"diag", "pod"} {
			if errors.Is(err, errMissing) {
				err = s.find(ctx, next, name)
			}
		}
		return err
	case "mf", "mountfault", "mountfaults":
		if err := s.api.server.Get(ctx, s.api.keyOf(name), found); err != nil {
			return err
		}
		s.faults = []*v1.MountFault{found}
		if namespace, of, ok := strings.Cut(found.Status.Diagnosis, "/"); ok {
			err := s.api.server.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: of}, diagnosis)
			if err == nil {
				s.diagnosis = diagnosis
			} else if !errors.Is(err, errMissing) && !errors.Is(err, verb.ErrRefused) {
				return err
			}
		}
		return nil
	case "diag", "diagnosis", "diagnoses":
		err := s.api.server.Get(ctx, s.api.keyOf(name), diagnosis)
		if err == nil {
			s.diagnosis = diagnosis
		}
		return err
	case "pod", "pods", "po":
		return s.readPod(ctx, name)
	}
	return fmt.Errorf("%q: must be NAME, mf/NAME, diag/NAME or pod/NAME", kind+"/"+name)
}

// readPod reads the faults of a pod, and its last Diagnosis in its own namespace and in that of kubediag, as far as the user may.
func (s *subject) readPod(ctx context.Context, name string) error {
	var err error
	s.faults, err = s.api.listFaults(ctx, func(f *v1.MountFault) bool { return f.Status.Pod != nil && f.Status.Pod.Name == name }, ctrlclient.InNamespace(s.api.namespace))
	if err != nil {
		return err
	}
	for _, place := range []string{s.api.namespace, s.home} {
		var list v1.DiagnosisList
		if err := s.api.server.List(ctx, &list, ctrlclient.InNamespace(place)); err != nil && (place != s.home || !errors.Is(err, verb.ErrRefused)) {
			return err
		}
		for i := range list.Items {
			d := &list.Items[i]
			if p := d.Spec.PodReference; p != nil && p.Name == name && p.Namespace == s.api.namespace && (s.diagnosis == nil || s.diagnosis.CreationTimestamp.Before(&d.CreationTimestamp)) {
				s.diagnosis = d
			}
		}
	}
	return nil
}

// text is one fault in full or a table of several, and below it the Diagnosis. Empty: nothing is known.
func (s *subject) text() string {
	view := faultsView{screen: s.screen, api: s.api, now: s.now, states: map[string]diagnosisState{}}
	if d := s.diagnosis; d != nil {
		view.states[d.Namespace+"/"+d.Name] = stateOf(d)
	}
	text, hints := "", []terminal.Hint(nil)
	if len(s.faults) == 1 {
		text += s.faultText(s.faults[0])
	} else if len(s.faults) > 1 {
		text += view.tableText(groupRows(s.faults, false))
	}
	if len(s.faults) > 0 {
		hints = view.nextHints(groupRows(s.faults, false))
		if len(s.faults) == 1 { // its text is shown here
			hints[0] = terminal.Hint{Line: s.api.kubectlLine("get", "mf", "-n", s.faults[0].Namespace, s.faults[0].Name, "-o", "yaml"), Purpose: "all of it"}
		}
	}
	if d := s.diagnosis; d != nil {
		story := newStory(s.screen, d)
		story.verbose = s.verbose
		text += story.headline(fmt.Sprintf("Diagnosis %s/%s of %s, %s ago by %s: %s", d.Namespace, d.Name, d.Spec.Target(),
			formatAge(d.CreationTimestamp, s.now), cmp.Or(d.Labels[v1.LabelOrigin], "person"), stateOf(d).text())) + story.newsText(d)
		hints = append(hints, terminal.Hint{Line: s.api.commandLine("report", d.Name, "-n", d.Namespace), Purpose: "all of the Diagnosis, for a ticket"})
	}
	if text == "" {
		return ""
	}
	return text + "\nNext:\n" + s.screen.Hints(hints, nil)
}

// faultText is one fault that is present.
func (s *subject) faultText(f *v1.MountFault) string {
	of, impact := f.Status, fault.Impact(f.Status.Impact)
	p := render.Page{Screen: s.screen}
	for _, row := range [][2]string{
		{"hurts", verb.Hurts[impact] + ", since " + formatAge(of.Since, s.now) + " on node " + of.Node}, {"fault", of.Summary}, {"container", of.Container},
		{"volume", strings.TrimSuffix(of.Volume+", claim "+of.Claim, ", claim ")}, {"driver", of.Driver}, {"held by", of.Holder},
		{"heals", healText(f) + strings.TrimSuffix(": "+of.Plan, ": ")},
	} {
		p.Row(2, row[0], row[1])
	}
	if r := of.Recovery; r != nil {
		by := cmp.Or(strings.Join(r.Policies, ", "), "no policy")
		if r.PausedBy != "" {
			by += "; paused by " + r.PausedBy
		}
		p.Row(2, "allowed", string(r.Mode)+", by "+by)
	}
	for i, fact := range of.Evidence[:min(len(of.Evidence), maxFacts)] {
		p.Row(2, []string{"evidence", "", ""}[i], printable.Clip(fact, maxShownBytes))
	}
	var hints []terminal.Hint
	for _, c := range of.Commands {
		hints = append(hints, terminal.Hint{Line: printable.Quoted(c.Line), Purpose: c.Purpose})
	}
	if len(hints) > 0 {
		p.Line(2, "by hand, as root on the node:")
	}
	return s.screen.Marked("", "✗", verb.Colours[impact], of.Code+" "+faultSubject(f)) + p.String() + s.screen.Hints(hints, nil)
}
