// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/ui"
)

const (
	// repairsPeriod is how far back status shows repairs, redrawInterval the time between two screens of --watch.
	repairsPeriod  = 12 * time.Hour
	redrawInterval = 5 * time.Second
)

// statusReport answers the questions of the owner of a cluster.
type statusReport struct {
	SchemaVersion int       `json:"schemaVersion"`
	Time          time.Time `json:"time"`
	Namespace     string    `json:"namespace,omitempty"`
	// Causes are the faults that are present, by their likely cause, the worst first.
	Causes []statusCause `json:"causes"`
	// Unwatched says which nodes are not watched, or why that is not known.
	Unwatched []string        `json:"unwatched"`
	Waiting   []statusWaiting `json:"waiting"`
	Policies  []statusPolicy  `json:"policies"`
	// Repairs are those of the last 12 hours, the failed ones first.
	Repairs []statusRepair `json:"repairs"`
	// Unknown has the right that is missing, by the name of the field that could not be read.
	Unknown map[string]string `json:"unknown"`

	faults []*v1.MountFault
	rows   []faultRow // of Causes
}

// statusCause are faults with one code, and one driver or else one volume of one workload.
type statusCause struct {
	Code     string         `json:"code"`
	Impact   v1.FaultImpact `json:"impact"`
	Heal     v1.FaultHeal   `json:"heal"`
	Driver   string         `json:"driver,omitempty"`
	Volume   string         `json:"volume,omitempty"`
	Workload string         `json:"workload,omitempty"`
	Faults   int            `json:"faults"`
	Pods     int            `json:"pods"`
	Nodes    int            `json:"nodes"`
	Since    time.Time      `json:"since"`
}

// statusWaiting is a Diagnosis that waits for the approval of its plan.
type statusWaiting struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Target    string    `json:"target"`
	Since     time.Time `json:"since"`
	Command   string    `json:"command"`
}

// statusPolicy is a RecoveryPolicy, the mode that it has now, and its holds.
type statusPolicy struct {
	Name  string          `json:"name"`
	Mode  v1.RecoveryMode `json:"mode"`
	Now   v1.RecoveryMode `json:"now"`
	Holds []string        `json:"holds"`
}

// statusRepair are repairs of one code in the pods of one workload.
type statusRepair struct {
	Subject  string    `json:"subject"`
	Code     string    `json:"code"`
	Origin   string    `json:"origin"`
	Repaired int       `json:"repaired"`
	Failed   int       `json:"failed"`
	Last     time.Time `json:"last"`
}

// statusOptions are the flags of the verb status.
type statusOptions struct {
	*connection
	watch bool
	home  string
	out   *verb.Format

	language ui.Language // of the page
}

func newStatusCommand(conn *connection) *cobra.Command {
	o := &statusOptions{connection: conn}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show on one screen what is broken, what waits for you, and what kubediag does",
		Long: "status shows the faults by cause, the nodes that are not watched, the plans that wait for approval, what holds each\n" +
			"RecoveryPolicy now, and the repairs of the last 12 hours. It shows all namespaces, or that of --namespace.\n\n" +
			"Exit status: 0 no fault, 1 faults, 2 it could not look at everything.",
		Example: "  kubectl kubediag status\n  kubectl kubediag status -w\n  kubectl kubediag status -o html > status.html",
		Args:    verb.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.runStatus(cmd) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "draw the screen again every 5 seconds")
	cmd.Flags().StringVar(&o.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	o.out = addFormat(cmd, verb.JSON, verb.HTML)
	ui.AddLanguage(cmd, &o.language)
	return cmd
}

func (o *statusOptions) runStatus(cmd *cobra.Command) error {
	if o.watch && *o.out != formatText {
		return errors.New("--watch: takes no --output")
	}
	apiClient, err := o.newClient()
	if err != nil {
		return err
	}
	namespace := apiClient.namespaceUnless(!o.set.Changed("namespace"))
	ticker := time.NewTicker(redrawInterval)
	defer ticker.Stop()
	for drawn := (*statusReport)(nil); ; {
		r, err := o.readStatus(cmd.Context(), statusSource{api: apiClient}, namespace, time.Now())
		switch {
		case drawn != nil && cmd.Context().Err() != nil:
			return drawn.finalError()
		case drawn != nil && err != nil:
			reportWaiting(cmd)(err)
		case err != nil:
			return err
		default:
			drawn = r
			if err := o.showStatus(cmd, apiClient, r); err != nil {
				return err
			}
		}
		if !o.watch {
			return r.finalError()
		}
		select {
		case <-cmd.Context().Done():
			return drawn.finalError()
		case <-ticker.C:
		}
	}
}

func (o *statusOptions) showStatus(cmd *cobra.Command, c *client, r *statusReport) error {
	view := statusView{faultsView{screen: screenOf(cmd), api: c, brief: true, now: r.Time, problems: r.Unwatched, home: o.home}, r}
	switch *o.out {
	case verb.JSON:
		return render.WriteJSON(cmd.OutOrStdout(), r)
	case verb.HTML:
		view.screen = terminal.Screen{}
		return ui.Write(cmd.OutOrStdout(), view.page(o.language, false))
	}
	screen, text := view.screen, ""
	if o.watch && screen.Terminal {
		text = "\x1b[H\x1b[2J"
	}
	text += view.text()
	if o.watch {
		text += fmt.Sprintf("%s, every %s. Ctrl-C ends.\n", r.Time.Local().Format(time.TimeOnly), redrawInterval)
	}
	return verb.Write(cmd.OutOrStdout(), text)
}

func (r *statusReport) finalError() error {
	switch {
	case len(r.Causes) > 0:
		return verb.ErrFaults
	case len(r.Unwatched) > 0:
		return errUnwatched
	case len(r.Unknown) > 0:
		return errors.New("not all of it could be looked at")
	}
	return nil
}

// readStatus has the faults and the Diagnoses of a source, and asks the API server for the rest. A right that is missing is no error: the report names it.
func (o *statusOptions) readStatus(ctx context.Context, from statusSource, namespace string, now time.Time) (*statusReport, error) {
	r := &statusReport{
		SchemaVersion: 1, Time: now, Namespace: namespace, Causes: []statusCause{}, Unwatched: []string{}, Waiting: []statusWaiting{}, Policies: []statusPolicy{},
		Repairs: []statusRepair{}, Unknown: map[string]string{},
	}
	c := from.api
	var policies v1.RecoveryPolicyList
	if err := r.noteRight(c, "", &policies, c.server.List(ctx, &policies), "policies"); err != nil {
		return nil, err
	}
	found, err := listForPage[*v1.MountFault](ctx, from, &v1.MountFaultList{}, namespace)
	if err := r.noteRight(c, namespace, &v1.MountFaultList{}, err, "causes"); err != nil {
		return nil, err
	}
	places := []string{namespace}
	if namespace != "" && namespace != o.home {
		places = append(places, o.home) // the records are there, and the Diagnoses that policies ask for
	}
	var diagnoses []*v1.Diagnosis
	for _, place := range places {
		list, err := listForPage[*v1.Diagnosis](ctx, from, &v1.DiagnosisList{}, place)
		if err := r.noteRight(c, place, &v1.DiagnosisList{}, err, "waiting", "repairs"); err != nil {
			return nil, err
		}
		diagnoses = append(diagnoses, list...)
	}
	if namespace != "" {
		diagnoses = slices.DeleteFunc(diagnoses, func(d *v1.Diagnosis) bool { return d.Namespace != namespace && d.PodNamespace() != namespace })
	}
	problems, err := watchCheck{api: c, home: o.home}.problems(ctx)
	if err != nil {
		return nil, err
	}
	r.Unwatched = append(r.Unwatched, problemTexts(problems)...)
	r.addFaults(found)
	r.addPolicies(policies.Items)
	r.addDiagnoses(c, diagnoses)
	return r, nil
}

// noteRight notes below these fields that the user may not list these objects. Other errors it returns.
func (r *statusReport) noteRight(c *client, namespace string, list ctrlclient.ObjectList, err error, fields ...string) error {
	if !errors.Is(err, verb.ErrRefused) {
		return err
	}
	resource, err := resourceOf(c.server, list)
	for _, field := range fields {
		r.Unknown[field] = fmt.Sprintf("you may not list %s in %s; ClusterRole kubediag-view gives that right", resource.Resource, placeText(namespace))
	}
	return err
}

// placeText is a namespace, or all of them.
func placeText(namespace string) string {
	if namespace == "" {
		return "all namespaces"
	}
	return "namespace " + namespace
}

// addFaults groups the faults by their likely cause.
func (r *statusReport) addFaults(items []*v1.MountFault) {
	r.faults = append(r.faults, items...)
	slices.SortFunc(r.faults, compareFaults)
	pod := func(f *v1.MountFault) string {
		if f.Status.Pod == nil {
			return ""
		}
		return faultSubject(f)
	}
	for _, same := range verb.Group(r.faults, func(f *v1.MountFault) string {
		if f.Status.Driver != "" {
			return f.Status.Code + "\x00" + f.Status.Driver
		}
		return f.Status.Code + "\x00" + f.Namespace + "\x00" + workloadName(f) + "\x00" + f.Status.Volume
	}) {
		first := same[0].Status
		cause := statusCause{
			Code: first.Code, Impact: first.Impact, Heal: first.Heal, Driver: first.Driver, Since: first.Since.Time, Pods: len(verb.Distinct(same, pod)),
			Nodes: len(verb.Distinct(same, func(f *v1.MountFault) string { return f.Status.Node })),
		}
		if cause.Driver == "" {
			cause.Volume, cause.Workload = first.Volume, workloadName(same[0])
		}
		for _, f := range same {
			cause.Faults += max(1, int(f.Status.Unlisted))
			if f.Status.Since.Time.Before(cause.Since) {
				cause.Since = f.Status.Since.Time
			}
		}
		r.Causes, r.rows = append(r.Causes, cause), append(r.rows, faultRow{same})
	}
}

// addPolicies finds the holds of each policy, those that are held first.
func (r *statusReport) addPolicies(items []v1.RecoveryPolicy) {
	var all []*policy.Policy
	for i := range items {
		all = append(all, policy.Compile(&items[i], fault.Known()))
	}
	for _, p := range all {
		now, reason := p.ModeNow(r.Time)
		of := statusPolicy{Name: p.Object.Name, Mode: p.Object.Spec.Mode, Now: now, Holds: []string{}}
		switch {
		case p.Object.Spec.Paused: // it then holds the repairs of Diagnoses, too, with any mode
			of.Holds = append(of.Holds, "paused")
		case !reason.Until.IsZero():
			of.Holds = append(of.Holds, "outside its windows until "+reason.Until.UTC().Format("2006-01-02 15:04 MST"))
		case now != of.Mode:
			of.Holds = append(of.Holds, strings.TrimPrefix(reason.Why, "policy "+of.Name+" "))
		}
		for _, other := range all {
			if other != p && other.Overrules(p) {
				of.Holds = append(of.Holds, "overruled by policy "+other.Object.Name)
			}
		}
		for _, b := range p.Object.Status.Breakers {
			if b.State == v1.BreakerOpen {
				of.Holds = append(of.Holds, fmt.Sprintf("breaker of %s open in %s: %s", b.Code, placeText(b.Namespace), b.Message))
			}
		}
		c := meta.FindStatusCondition(p.Object.Status.Conditions, v1.ConditionEscalation)
		if c != nil && c.Status == metav1.ConditionFalse && slices.Contains([]string{v1.ReasonMissingRight, v1.ReasonCordonHeld, v1.ReasonEvictionRefused}, c.Reason) {
			of.Holds = append(of.Holds, "no escalation: "+c.Message)
		}
		r.Policies = append(r.Policies, of)
	}
	slices.SortFunc(r.Policies, func(a, b statusPolicy) int {
		return cmp.Or(min(1, len(b.Holds))-min(1, len(a.Holds)), cmp.Compare(a.Name, b.Name))
	})
}

// addDiagnoses finds those that wait for approval, and the repairs.
func (r *statusReport) addDiagnoses(c *client, items []*v1.Diagnosis) {
	repairs := map[[3]string]statusRepair{}
	for _, d := range items {
		switch {
		case stateOf(d) == diagnosisWaits:
			r.Waiting = append(r.Waiting, statusWaiting{
				Namespace: d.Namespace, Name: d.Name, Target: d.Spec.Target(), Since: d.CreationTimestamp.Time,
				Command: c.commandLine("approve", d.Name, "-n", d.Namespace),
			})
		case d.Status.CompletionTime != nil && r.Time.Sub(d.Status.CompletionTime.Time) <= repairsPeriod && hasChanged(d):
			one := repairOf(d)
			key := [3]string{one.Subject, one.Code, one.Origin}
			sum := repairs[key]
			one.Repaired, one.Failed = one.Repaired+sum.Repaired, one.Failed+sum.Failed
			if sum.Last.After(one.Last) {
				one.Last = sum.Last
			}
			repairs[key] = one
		}
	}
	slices.SortFunc(r.Waiting, func(a, b statusWaiting) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	r.Repairs = append(r.Repairs, slices.Collect(maps.Values(repairs))...)
	slices.SortFunc(r.Repairs, func(a, b statusRepair) int {
		return cmp.Or(min(1, b.Failed)-min(1, a.Failed), b.Last.Compare(a.Last), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Origin, b.Origin))
	})
}

// hasChanged reports whether a Diagnosis has made a change, or has tried to.
func hasChanged(d *v1.Diagnosis) bool {
	return slices.ContainsFunc(d.Status.Operations, func(o v1.OperationRun) bool {
		return slices.ContainsFunc(o.Actions, func(a v1.Action) bool { return a.Phase != v1.ActionPlanned })
	})
}

// repairOf counts the repairs of a Diagnosis. A record may stand for several, in pods of one namespace.
func repairOf(d *v1.Diagnosis) statusRepair {
	one := statusRepair{Subject: d.Status.Target, Code: d.Spec.Set(), Origin: d.Labels[v1.LabelOrigin], Last: d.Status.CompletionTime.Time, Repaired: 1}
	if len(d.Status.Faults) > 0 {
		one.Code = d.Status.Faults[0].Code
	}
	if d.Status.Phase == v1.DiagnosisFailed {
		one.Repaired, one.Failed = 0, 1
	}
	p := d.Spec.PodReference
	switch n := d.Status.Repeats; {
	case n != nil:
		one.Repaired, one.Failed = int(n.Count-n.Failed), int(n.Failed)
		one.Subject = cmp.Or(d.PodNamespace(), d.Spec.NodeName)
	case p != nil:
		one.Subject = p.Namespace + "/" + verb.NameStem(p.Name)
	}
	return one
}
