// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// getOptions are the flags of the verb get.
type getOptions struct {
	*connection
	all, watch bool
	out        *format
}

func newGetCommand(c *connection) *cobra.Command {
	o := &getOptions{connection: c}
	cmd := &cobra.Command{
		Use:               "get [NAME]",
		Short:             "Show Diagnoses, or follow one",
		Long:              "get shows the Diagnoses of a namespace, or of all. With NAME and -w it shows what happens to one until it ends.",
		Example:           "  kubectl kubediag get -A\n  kubectl kubediag get web-x2x9k-4k2fd -n shop -w",
		Args:              verb.Takes("NAME", 0),
		ValidArgsFunction: verb.CompleteArg(c.namesOf(diagnoses)),
	}
	cmd.RunE = verb.Named(func(cmd *cobra.Command, args []string) error {
		if o.all && len(args) > 0 {
			return errors.New("--all-namespaces: cannot be with a NAME")
		}
		return o.run(cmd, args)
	})
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "Diagnoses of all namespaces")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "follow the Diagnosis NAME until it ends")
	o.out = addFormat(cmd, wide, inJSON, inYAML, asName)
	return cmd
}

func (o *getOptions) run(cmd *cobra.Command, args []string) error {
	if o.watch && (len(args) == 0 || *o.out != forPeople) {
		return errors.New("--watch: takes a NAME, and no --output: kubectl get diag -w follows all of them")
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	ctx, in := cmd.Context(), diagnoses.in(c.namespace)
	if o.all {
		in.namespace = ""
	}
	switch {
	case o.watch:
		return o.follow(cmd, c, args[0])
	case *o.out == forPeople || *o.out == wide:
		return o.table(cmd, c, in, args)
	case len(args) > 0:
		d := &v1.Diagnosis{}
		if err := c.get(ctx, in, args[0], d); err != nil {
			return err
		}
		return newPrinter(*o.out, v1.GroupVersion.WithKind("Diagnosis")).object(cmd.OutOrStdout(), d)
	}
	list := &v1.DiagnosisList{}
	if err := c.list(ctx, in, metav1.ListOptions{}, list); err != nil {
		return err
	}
	if len(list.Items) == 0 && *o.out == asName {
		return nil
	}
	return newPrinter(*o.out, v1.GroupVersion.WithKind("DiagnosisList")).object(cmd.OutOrStdout(), list)
}

// table prints the columns that the API server prints.
func (o *getOptions) table(cmd *cobra.Command, c *client, in place, args []string) error {
	table := &metav1.Table{}
	list := metav1.ListOptions{}
	if len(args) > 0 {
		if err := c.get(cmd.Context(), in, args[0], &v1.Diagnosis{}); err != nil {
			return err
		}
		list.FieldSelector = fields.OneTermEqualSelector("metadata.name", args[0]).String()
	}
	if err := c.table(cmd.Context(), in, list, table); err != nil {
		return err
	}
	if len(table.Rows) == 0 {
		return verb.Write(cmd.OutOrStdout(), "No Diagnosis is here. To make one: "+c.command("run", "pod/NAME")+"\n")
	}
	p := printers.NewTablePrinter(printers.PrintOptions{Wide: *o.out == wide, WithNamespace: in.namespace == ""})
	if err := p.PrintObj(table, printable.Writer(cmd.OutOrStdout())); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// follow shows what happens to one Diagnosis until it ends.
func (o *getOptions) follow(cmd *cobra.Command, c *client, name string) error {
	d := &v1.Diagnosis{}
	if err := c.get(cmd.Context(), diagnoses.in(c.namespace), name, d); err != nil {
		return err
	}
	r := &runner{
		runOptions: &runOptions{connection: o.connection, out: new(format)}, client: c, cmd: cmd, Screen: screen(cmd), out: cmd.OutOrStdout(),
	}
	s := newStory(r.Screen, d)
	if err := r.say(s.begin(d.Spec.Target())); err != nil {
		return err
	}
	if err := r.follow(cmd.Context(), r.watcher(d), s, d); err != nil {
		if cmd.Context().Err() != nil {
			return r.left(d, "interrupted")
		}
		return err
	}
	return r.end(d)
}

func newCancelCommand(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel NAME",
		Short: "End a Diagnosis that runs",
		Long: "cancel deletes a Diagnosis that has not ended: there is no other way to end one. Its agent stops before the next action. Its\n" +
			"repairs stay, and cancel shows how far it came. A Diagnosis that has ended stays as it is.",
		Example:           "  kubectl kubediag cancel web-x2x9k-4k2fd -n shop",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(c.namesOf(diagnoses)),
		RunE: verb.Named(func(cmd *cobra.Command, args []string) error {
			made, err := c.client()
			if err != nil {
				return err
			}
			return made.cancel(cmd, args[0])
		}),
	}
}

func (c *client) cancel(cmd *cobra.Command, name string) error {
	in, d, s := diagnoses.in(c.namespace), &v1.Diagnosis{}, screen(cmd)
	if err := c.get(cmd.Context(), in, name, d); err != nil {
		return err
	}
	if ended(d) {
		return verb.Write(cmd.OutOrStdout(), s.Text(s.Marked("", "!", terminal.Yellow, fmt.Sprintf("Diagnosis %s/%s has ended already: %s", d.Namespace, d.Name, d.Status.Summary))))
	}
	soFar := newStory(s, d)
	if err := verb.Write(cmd.OutOrStdout(), soFar.begin(d.Spec.Target())+soFar.news(d)); err != nil {
		return err
	}
	if err := c.remove(cmd.Context(), in, &d.ObjectMeta); err != nil {
		return err
	}
	return verb.Write(cmd.OutOrStdout(), s.Text(s.Marked("", "✓", terminal.Green,
		fmt.Sprintf("Deleted Diagnosis %s/%s, which cancels it. Its repairs stay.", d.Namespace, d.Name))))
}

// watcher follows one Diagnosis.
func (r *runner) watcher(d *v1.Diagnosis) *watcher {
	return &watcher{
		client: r.client, place: diagnoses.in(d.Namespace), newList: func() runtime.Object { return &v1.DiagnosisList{} }, lost: waits(r.cmd),
		options: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", d.Name).String()},
	}
}
