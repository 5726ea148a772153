// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// getOptions are the flags of the verb get.
type getOptions struct {
	*connection
	all, watch bool
	out        *verb.Format
}

func newGetCommand(c *connection) *cobra.Command {
	o := &getOptions{connection: c}
	cmd := &cobra.Command{
		Use:               "get [NAME]",
		Short:             "Show Diagnoses, or follow one",
		Long:              "get shows the Diagnoses of a namespace, or of all. With NAME and -w it shows what happens to one until it ends.",
		Example:           "  kubectl kubediag get -A\n  kubectl kubediag get web-x2x9k-4k2fd -n shop -w",
		Args:              verb.Takes("NAME", 0),
		ValidArgsFunction: verb.CompleteArg(c.resourceNames(diagnosisKind)),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.all && len(args) > 0 {
			return errors.New("--all-namespaces: cannot be with a NAME")
		}
		if o.watch && (len(args) == 0 || *o.out != formatText) {
			return errors.New("--watch: takes a NAME, and no --output: kubectl get diag -w follows all of them")
		}
		apiClient, err := o.newClient()
		if err != nil {
			return err
		}
		ctx, namespace := cmd.Context(), apiClient.namespaceUnless(o.all)
		switch {
		case o.watch:
			return followDiagnosis(cmd, apiClient, args[0])
		case *o.out == formatText || *o.out == formatWide:
			return o.printTable(cmd, apiClient, namespace, args)
		case len(args) > 0:
			d := &v1.Diagnosis{}
			if err := apiClient.server.Get(ctx, apiClient.keyOf(args[0]), d); err != nil {
				return err
			}
			return newPrinter(*o.out, "Diagnosis").printObject(cmd.OutOrStdout(), d)
		}
		list := &v1.DiagnosisList{}
		if err := apiClient.server.List(ctx, list, ctrlclient.InNamespace(namespace)); err != nil {
			return err
		}
		if len(list.Items) == 0 && *o.out == formatName {
			return nil
		}
		return newPrinter(*o.out, "DiagnosisList").printObject(cmd.OutOrStdout(), list)
	}
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "Diagnoses of all namespaces")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "follow the Diagnosis NAME until it ends")
	o.out = addFormat(cmd, formatWide, verb.JSON, verb.YAML, formatName)
	return cmd
}

// printTable prints the columns that the API server prints.
func (o *getOptions) printTable(cmd *cobra.Command, apiClient *client, namespace string, args []string) error {
	list := metav1.ListOptions{}
	if len(args) > 0 {
		if err := apiClient.server.Get(cmd.Context(), apiClient.keyOf(args[0]), &v1.Diagnosis{}); err != nil {
			return err
		}
		list.FieldSelector = fields.OneTermEqualSelector("metadata.name", args[0]).String()
	}
	asked, err := apiClient.restClient(v1.GroupVersion)
	if err != nil {
		return err
	}
	ctx, cancel := apiClient.limit(cmd.Context())
	defer cancel()
	table := &metav1.Table{}
	err = asked.Get().NamespaceIfScoped(namespace, namespace != "").Resource("diagnoses").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		SpecificallyVersionedParams(&list, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).Do(ctx).Into(table)
	for i := range table.Rows {
		of := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(table.Rows[i].Object.Raw, of); err != nil {
			return fmt.Errorf("read table of Diagnoses: %w", err)
		}
		table.Rows[i].Object.Object = of
	}
	if err != nil {
		return apiClient.requestError(requestAction{"list", schema.GroupResource{Group: v1.Group, Resource: "diagnoses"}, ctrlclient.ObjectKey{}}, err)
	}
	if len(table.Rows) == 0 {
		return verb.Write(cmd.OutOrStdout(), "No Diagnosis is here. To make one: "+apiClient.commandLine("run", "pod/NAME")+"\n")
	}
	return apiClient.writeTable(cmd.OutOrStdout(), screenOf(cmd), table, *o.out, namespace)
}

// writeTable writes a table of Diagnoses in a format. The one for people fits a screen: it has the newest of them.
func (c *client) writeTable(out io.Writer, screen terminal.Screen, table *metav1.Table, format verb.Format, namespace string) error {
	more, all := 0, namespace == ""
	if left := len(table.Rows) - maxDiagnosisRows; format == formatText && left > 0 {
		made := func(r metav1.TableRow) time.Time { return metadata(r.Object.Object).GetCreationTimestamp().Time }
		slices.SortStableFunc(table.Rows, func(a, b metav1.TableRow) int { return made(b).Compare(made(a)) })
		table.Rows, more = table.Rows[:maxDiagnosisRows], left
	}
	if format == formatText && screen.Width > 0 {
		if err := verb.Write(out, screen.Text(fittedTable(table, all).Text(screen))); err != nil {
			return err
		}
	} else if err := printers.NewTablePrinter(printers.PrintOptions{Wide: format == formatWide, WithNamespace: all}).PrintObj(table, printable.Writer(out)); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if more == 0 {
		return nil
	}
	where := "-A"
	if !all {
		where = "--namespace=" + namespace
	}
	return verb.Write(out, fmt.Sprintf("These are the newest, and %d are older. All of them:\n  %s\n", more, c.commandLine("get", where, "-o", "wide")))
}

// fittedTable has the columns that kubectl prints without -o wide. All can be cut but the names.
func fittedTable(from *metav1.Table, withNamespace bool) render.Table {
	made := render.Table{Subject: 1}
	add := func(namespace string, cell func(column int) any) {
		var row render.Row
		if withNamespace {
			row.Cells = append(row.Cells, namespace)
		}
		for i, c := range from.ColumnDefinitions {
			if text := ""; c.Priority == 0 {
				if value := cell(i); value != nil {
					text = fmt.Sprint(value)
				}
				row.Cells = append(row.Cells, printable.Quoted(text))
			}
		}
		made.Rows = append(made.Rows, row)
	}
	if withNamespace {
		made.Subject = 2
	}
	add("NAMESPACE", func(column int) any { return strings.ToUpper(from.ColumnDefinitions[column].Name) })
	for _, row := range from.Rows {
		add(metadata(row.Object.Object).GetNamespace(), func(column int) any {
			if column < len(row.Cells) {
				return row.Cells[column]
			}
			return nil
		})
	}
	return made
}

// maxDiagnosisRows is how many Diagnoses fit a screen of 40 lines.
const maxDiagnosisRows = 36

// followDiagnosis shows the changes of one Diagnosis until it ends.
func followDiagnosis(cmd *cobra.Command, c *client, name string) error {
	diagnosis := &v1.Diagnosis{}
	if err := c.server.Get(cmd.Context(), c.keyOf(name), diagnosis); err != nil {
		return err
	}
	r := &targetRunner{options: &runOptions{out: new(verb.Format)}, api: c, cmd: cmd, screen: screenOf(cmd), out: cmd.OutOrStdout()}
	s := r.newStory(cmd.Context(), diagnosis)
	if err := r.printText(s.headline(diagnosis.Spec.Target())); err != nil {
		return err
	}
	if err := r.followDiagnosis(cmd.Context(), r.newWatcher(diagnosis), s, diagnosis); err != nil {
		if cmd.Context().Err() != nil {
			return r.stillRunningError(diagnosis, "interrupted")
		}
		return err
	}
	return r.finalError(diagnosis)
}

func newCancelCommand(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel NAME",
		Short: "End a Diagnosis that runs",
		Long: "cancel deletes a Diagnosis that has not ended: there is no other way to end one. Its agent stops before the next action. Its\n" +
			"repairs stay, and cancel shows how far it came. A Diagnosis that has ended stays as it is.",
		Example:           "  kubectl kubediag cancel web-x2x9k-4k2fd -n shop",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(c.resourceNames(diagnosisKind)),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, err := c.newClient()
			if err != nil {
				return err
			}
			diagnosis, screen := &v1.Diagnosis{}, screenOf(cmd)
			if err := made.server.Get(cmd.Context(), made.keyOf(args[0]), diagnosis); err != nil {
				return err
			}
			if diagnosis.Ended() {
				return verb.Write(cmd.OutOrStdout(), screen.Text(screen.Marked("", "!", terminal.Yellow, fmt.Sprintf("Diagnosis %s/%s has ended already: %s", diagnosis.Namespace, diagnosis.Name, diagnosis.Status.Summary))))
			}
			soFar := newStory(screen, diagnosis)
			if err := verb.Write(cmd.OutOrStdout(), soFar.headline(diagnosis.Spec.Target())+soFar.newsText(diagnosis)); err != nil {
				return err
			}
			if err := made.server.Delete(cmd.Context(), diagnosis, ctrlclient.Preconditions{UID: &diagnosis.UID}); err != nil {
				return err
			}
			return verb.Write(cmd.OutOrStdout(), cancelledText(screen, diagnosis))
		},
	}
}

func cancelledText(screen terminal.Screen, d *v1.Diagnosis) string {
	return screen.Text(screen.Marked("", "✓", terminal.Green, fmt.Sprintf("Deleted Diagnosis %s/%s, which cancels it. Its repairs stay.", d.Namespace, d.Name)))
}

// newWatcher follows one Diagnosis.
func (r *targetRunner) newWatcher(d *v1.Diagnosis) *objectWatcher {
	return &objectWatcher{
		server: r.api.server, newList: func() ctrlclient.ObjectList { return &v1.DiagnosisList{} }, connectionLost: reportWaiting(r.cmd),
		options: []ctrlclient.ListOption{ctrlclient.InNamespace(d.Namespace), ctrlclient.MatchingFields{"metadata.name": d.Name}},
	}
}
