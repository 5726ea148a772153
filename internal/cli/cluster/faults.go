// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// faultsOptions are the flags of the verb faults.
type faultsOptions struct {
	*connection
	all, watch bool
	node       string
	home       string // the namespace of kubediag
	codes      []string
	out        *verb.Format
}

// errUnwatched is the error of a list that is empty, or not complete, because a node is not watched.
var errUnwatched = errors.New("not all nodes are watched, or that is not known")

func newFaultsCommand(conn *connection) *cobra.Command {
	o := &faultsOptions{connection: conn}
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "Show the mount faults that are present, those that hurt most first",
		Long: "faults shows the MountFaults of a namespace, or of all: what is broken now, since when, how it hurts, who can heal it, and\n" +
			"what to type next. Faults of a node itself are in the namespace of kubediag. The agents look for faults all the time, unless\n" +
			"their sentinel is off. faults says which nodes have no agent that answers.\n\n" +
			"Exit status: 0 no fault, 1 faults, 2 it could not look, or a node is not watched, 3 it was refused.",
		Example: "  kubectl kubediag faults -A\n  kubectl kubediag faults -n shop -w\n  kubectl kubediag faults -A --node worker-7 -o json",
		Args:    verb.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.runFaults(cmd) },
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "faults of all namespaces")
	f.BoolVarP(&o.watch, "watch", "w", false, "after the list, show what comes and what goes")
	f.StringVar(&o.node, "node", "", "only faults of this node")
	f.StringVar(&o.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	f.StringSliceVar(&o.codes, "code", nil, "only faults of these codes, with commas between them")
	o.out = addFormat(cmd, formatWide, verb.JSON, verb.YAML, formatName)
	verb.CompleteFlag(cmd, "code", verb.Codes)
	verb.CompleteFlag(cmd, "node", conn.resourceNames(nodeKind))
	return cmd
}

func (o *faultsOptions) runFaults(cmd *cobra.Command) error {
	for _, code := range o.codes {
		if !slices.Contains(verb.Codes(), code) && code != v1.UnlistedFaults {
			return fmt.Errorf("--code=%q: is none of %s", code, strings.Join(verb.Codes(), ", "))
		}
	}
	apiClient, err := o.newClient()
	if err != nil {
		return err
	}
	namespace := apiClient.namespaceUnless(o.all)
	watcher := &objectWatcher{server: apiClient.server, options: []ctrlclient.ListOption{ctrlclient.InNamespace(namespace)},
		newList: func() ctrlclient.ObjectList { return &v1.MountFaultList{} }, connectionLost: reportWaiting(cmd)}
	if o.node != "" {
		watcher.options = append(watcher.options, ctrlclient.MatchingLabels{v1.LabelNode: v1.NodeLabelValue(o.node)})
	}
	items, err := watcher.listFirst(cmd.Context())
	if err != nil {
		return err
	}
	check := watchCheck{api: apiClient, home: o.home, node: o.node}
	problems, err := check.problems(cmd.Context())
	if err != nil {
		return err
	}
	list := o.chosenFaults(items)
	if err := o.showFaults(cmd, apiClient, namespace, list, problemTexts(problems)); err != nil {
		return err
	}
	if o.watch {
		if problems, err = o.followFaults(cmd, watcher, check, problems); err != nil && cmd.Context().Err() == nil {
			return err
		}
		items, _ = watcher.known()
		list = o.chosenFaults(items)
	}
	if len(list) > 0 {
		return verb.ErrFaults
	}
	if len(problems) > 0 {
		return errUnwatched
	}
	return nil
}

// reportWaiting reports on the error output that the API server does not answer.
func reportWaiting(cmd *cobra.Command) func(error) {
	return func(err error) {
		fmt.Fprintf(cmd.ErrOrStderr(), "kubediag: %s; trying again\n", printable.Quoted(err.Error()))
	}
}

// chosenFaults are the faults that the flags ask for, the worst first.
func (o *faultsOptions) chosenFaults(items []runtime.Object) (list []*v1.MountFault) {
	for _, item := range items {
		if f, ok := item.(*v1.MountFault); ok && o.isChosen(f) {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, compareFaults)
	return list
}

func (o *faultsOptions) isChosen(f *v1.MountFault) bool {
	return (len(o.codes) == 0 || slices.Contains(o.codes, f.Status.Code)) && (o.node == "" || f.Status.Node == o.node)
}

// listFaults are the faults that are wanted, the worst first.
func (c *client) listFaults(ctx context.Context, wanted func(*v1.MountFault) bool, options ...ctrlclient.ListOption) (found []*v1.MountFault, err error) {
	var list v1.MountFaultList
	if err := c.server.List(ctx, &list, options...); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			found = append(found, &list.Items[i])
		}
	}
	slices.SortFunc(found, compareFaults)
	return found, nil
}

// compareFaults puts the faults with the worst impact first, and of those the oldest.
func compareFaults(a, b *v1.MountFault) int {
	rank := func(f *v1.MountFault) int { return slices.Index(fault.Impacts(), fault.Impact(f.Status.Impact)) }
	return cmp.Or(rank(a)-rank(b), a.Status.Since.Compare(b.Status.Since.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// showFaults writes the list as it is, and the problems of those who look for faults. Beside an output for programs they are on
// the error output.
func (o *faultsOptions) showFaults(cmd *cobra.Command, c *client, namespace string, list []*v1.MountFault, problems []string) error {
	output := cmd.OutOrStdout()
	if *o.out == formatText || *o.out == formatWide {
		view := faultsView{screen: screenOf(cmd), api: c, wide: *o.out == formatWide, now: time.Now(), problems: problems, home: o.home}
		list, view.states = c.withDiagnoses(cmd.Context(), list)
		return verb.Write(output, view.listText(list, namespace))
	}
	for _, problem := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), "kubediag: "+printable.Line(problem))
	}
	if o.watch { // one object after the other, now and later
		p := newPrinter(*o.out, "MountFault")
		for _, f := range list {
			if err := p.printChange(output, objectChange{watch.Added, f}); err != nil {
				return err
			}
		}
		return nil
	}
	all := &v1.MountFaultList{Items: []v1.MountFault{}}
	for _, f := range list {
		all.Items = append(all.Items, *f)
	}
	if *o.out == formatName && len(list) == 0 {
		return nil
	}
	return newPrinter(*o.out, "MountFaultList").printObject(output, all)
}

// followFaults writes the changes until the user interrupts it: the faults, and from time to time whether all nodes are
// watched. It returns the problems that it found last.
func (o *faultsOptions) followFaults(cmd *cobra.Command, w *objectWatcher, check watchCheck, problems []watchProblem) ([]watchProblem, error) {
	out, screen := cmd.OutOrStdout(), screenOf(cmd)
	p := newPrinter(*o.out, "MountFault")
	var mu sync.Mutex // of the output
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	last := make(chan []watchProblem, 1)
	go func() {
		last <- followProblems(ctx, check.problems, problems, func(mark string, colour terminal.Colour, text string) {
			mu.Lock()
			defer mu.Unlock()
			if *o.out == formatText || *o.out == formatWide {
				_ = verb.Write(out, screen.Text(screen.Marked(time.Now().Format(time.TimeOnly)+" ", mark, colour, text)))
			} else {
				fmt.Fprintln(cmd.ErrOrStderr(), "kubediag: "+printable.Line(text))
			}
		})
	}()
	err := w.followChanges(ctx, func(now objectChange) error {
		found, ok := now.object.(*v1.MountFault)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !ok || !o.isChosen(found):
			return nil
		case *o.out != formatText && *o.out != formatWide:
			return p.printChange(out, now)
		}
		return verb.Write(out, screen.Text(changeLine(screen, now.kind, found, time.Now())))
	})
	cancel()
	problems = <-last
	if errors.Is(err, context.Canceled) {
		return problems, nil
	}
	return problems, err
}

// changeLine is one line about a fault that has come, has changed or is gone.
func changeLine(screen terminal.Screen, kind watch.EventType, found *v1.MountFault, now time.Time) string {
	mark, colour := "✗", verb.Colours[fault.Impact(found.Status.Impact)]
	text := fmt.Sprintf("%s, heal: %s: %s", verb.Hurts[fault.Impact(found.Status.Impact)], healText(found), found.Status.Summary)
	switch kind {
	case watch.Deleted:
		mark, colour, text = "✓", terminal.Green, "gone after "+formatAge(found.Status.Since, now)
	case watch.Modified:
		mark = "!"
	}
	line := fmt.Sprintf("%s %s: %s", found.Status.Code, faultSubject(found), text)
	return screen.Marked(now.Format(time.TimeOnly)+" ", mark, colour, line)
}

// formatAge is how long something has lasted, as kubectl writes it.
func formatAge(since metav1.Time, now time.Time) string {
	if since.IsZero() {
		return "?"
	}
	return duration.HumanDuration(max(0, now.Sub(since.Time)))
}
