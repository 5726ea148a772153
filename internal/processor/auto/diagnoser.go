// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podstatus"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Diagnoser is the processor autoDiagnoser.
type Diagnoser struct {
	Pods kubelet.Pods
	// Lister is nil if the pods of the node are not known: then only those that are named are looked at.
	Lister   Lister
	Families []Family
	// Leaving is nil if nothing is known of pods that are being deleted.
	Leaving LeavingPods
	// Links looks for volumes that pods want and that are not there and, on a node, at all mounts and mount namespaces; nil: they are not looked for.
	Links mountstate.Inspector
}

// LeavingPods says how far pods are that are being deleted: a *leaving.Inspector.
type LeavingPods interface {
	Inspect(ctx context.Context, pods ...*corev1.Pod) ([]leaving.State, error)
}

// Name is autoDiagnoser.
func (*Diagnoser) Name() string { return "autoDiagnoser" }

// Parameters are those of all diagnosers.
func (d *Diagnoser) Parameters() []string {
	var parts []any
	for _, f := range d.Families {
		parts = append(parts, f.Diagnoser)
	}
	return mergeParameters(parts...)
}

// Run has every family look that applies. A family that cannot look fails the whole only if no other has found a fault:
// a fault that was found can be repaired.
func (d *Diagnoser) Run(ctx context.Context, request processor.Request) (processor.Result, error) {
	ctx = kubelet.InOnePass(ctx) // no look changes a mount, and each would read the table of some thousand mounts several times
	nothing := ""                // the message if nothing is found
	var deleted []*corev1.Pod
	var scope mountstate.Scope
	if request.Pod != (processor.Pod{}) {
		pod, elsewhere, err := podref.Load(ctx, d.Pods, request)
		if err != nil || elsewhere != "" {
			return processor.Result{NotApplicable: elsewhere}, err
		}
		nothing, deleted, scope.PodUIDs = podstatus.Sentence(pod, request.Pod.Container), []*corev1.Pod{pod}, []string{string(pod.UID)}
	} else if d.Lister != nil {
		deleted = d.Lister.PodsHere()
	}
	targets, err := d.listTargets(request)
	if err != nil {
		return processor.Result{}, err
	}
	s := checkSum{result: processor.Result{Values: map[string]string{}, Files: map[string]string{}}, podIsNamed: request.Pod.Name != ""}
	atOnce := 1
	if s.podIsNamed {
		atOnce = maxLooksAtOnce
	}
	looks, err := runLooks(ctx, targets, atOnce)
	if err != nil {
		return processor.Result{}, err
	}
	for i, l := range looks {
		s.addResult(targets[i], l.result, l.err)
	}
	if text := s.addLeaving(ctx, d.Leaving, deleted); request.Pod.Name != "" && text != "" {
		nothing = "No mount fault was found: " + text
	}
	if d.Links != nil && !namesDevice(request) {
		survey, err := d.Links.Look(ctx, scope)
		if err != nil {
			s.errs = append(s.errs, err)
		}
		survey.Over, survey.LeftOver = s.over, s.leftOver
		searches.AddUncounted(&survey)
		// Nothing more is said about those that another family has found to be broken.
		s.result.Unjudged = append(s.result.Unjudged, survey.Unknown.Without(s.result.Findings).Sentences()...)
	}
	return s.finalResult(request, nothing, len(targets))
}

// deviceParameters name a device.
var deviceParameters = []string{device.ParamDevice, device.ParamPersistentVolume, device.ParamMessage}

func namesDevice(request processor.Request) bool {
	return slices.ContainsFunc(deviceParameters, func(key string) bool { return request.Values[key] != "" })
}

// listTargets returns the targets of all looks.
func (d *Diagnoser) listTargets(request processor.Request) ([]familyTarget, error) {
	named := namesDevice(request)
	if named && request.Pod.Name != "" {
		return nil, processor.Stalled(errors.New("read spec: a pod and a device are named; a device may be held by other pods, so name the " +
			"node and the device, or the pod alone"))
	}
	var all []familyTarget
	for i := range d.Families {
		f := &d.Families[i]
		switch {
		case request.Pod.Name != "" && f.Scope <= Devices, request.Pod.Name == "" && !named && f.Scope != Pods, named && f.Scope == Devices:
			all = append(all, familyTarget{f, request})
		case request.Pod.Name == "" && !named:
			all = append(all, d.targetsOfPods(f, request)...)
		}
	}
	return all, nil
}

func (d *Diagnoser) targetsOfPods(f *Family, r processor.Request) []familyTarget {
	if d.Lister == nil {
		return nil
	}
	var all []familyTarget
	for _, pod := range d.Lister.PodsHere() {
		all = append(all, familyTarget{f, requestFor(r, pod.Namespace, pod.Name)})
	}
	slices.SortFunc(all, func(a, b familyTarget) int {
		return cmp.Or(cmp.Compare(a.request.Pod.Namespace, b.request.Pod.Namespace), cmp.Compare(a.request.Pod.Name, b.request.Pod.Name))
	})
	return all
}

// collectedPrefix begins the keys of collectors, whose results are long lists.
const collectedPrefix = "collector."

// checkSum has the findings of all looks.
type checkSum struct {
	result processor.Result
	checks []familyCheck
	errs   []error
	// over and leftOver are those of all results.
	over, leftOver []string
	// podIsNamed is whether a pod is: then every look is listed.
	podIsNamed bool
}

func (s *checkSum) addResult(target familyTarget, one processor.Result, err error) {
	one.Findings = s.newFindings(one.Findings)
	check := familyCheck{Family: target.Name, Namespace: target.request.Pod.Namespace, Pod: target.request.Pod.Name, Message: printable.Clip(one.NotApplicable, maxMessage)}
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound) && !s.podIsNamed:
		return // it went while others were looked at
	case err != nil:
		check.Error = printable.Clip(err.Error(), maxMessage)
		s.errs = append(s.errs, fmt.Errorf("%s: %w", target.Name, err))
	}
	s.result.Findings = append(s.result.Findings, one.Findings...)
	s.result.Unjudged = append(s.result.Unjudged, one.Unjudged...)
	s.over, s.leftOver = append(s.over, one.Over...), append(s.leftOver, one.LeftOver...)
	for _, text := range one.Unjudged[:min(len(one.Unjudged), maxSentences)] {
		check.Unjudged = append(check.Unjudged, printable.Clip(text, maxMessage))
	}
	for key, value := range one.Values {
		into := s.result.Values
		if strings.HasPrefix(key, collectedPrefix) {
			into = s.result.Files
		}
		if _, ok := into[key]; !ok { // of several, the first
			into[key] = value
		}
	}
	if target.request.Pod.Name == "" && target.Scope == Volumes {
		s.checks = append(s.checks, checksByPod(check, one.Findings)...)
		return
	}
	for _, f := range one.Findings {
		check.addFinding(f)
	}
	if target.request.Pod.Name == "" || s.podIsNamed || check.Error != "" || len(check.Unjudged)+len(check.Codes) > 0 {
		s.checks = append(s.checks, check)
	}
}

// leavingCheck is the name of the look at pods that are being deleted. Its faults have no remedy.
const leavingCheck = "leaving"

// addLeaving adds the pods that are being deleted and do not go. text is about the last that does.
func (s *checkSum) addLeaving(ctx context.Context, inspector LeavingPods, pods []*corev1.Pod) (text string) {
	if inspector == nil {
		return ""
	}
	states, err := inspector.Inspect(ctx, pods...)
	if err != nil {
		s.errs = append(s.errs, err)
	}
	var found []fault.Finding
	for _, state := range states {
		text = state.Text
		switch left := state.Remains; {
		case left == nil:
		case left.RunsUnknown != "":
			s.result.Unjudged = append(s.result.Unjudged, state.Text)
		default:
			found = append(found, left.Judge()...)
			if left.Over {
				s.over = append(s.over, left.Pod.UID)
			}
		}
	}
	if found = s.newFindings(found); len(found) > 0 {
		s.result.Findings = append(s.result.Findings, found...)
		s.checks = append(s.checks, checksByPod(familyCheck{Family: leavingCheck}, found)...)
	}
	return text
}

// newFindings are those that no finding of another family explains, which will be repaired.
func (s *checkSum) newFindings(found []fault.Finding) []fault.Finding {
	known := len(s.result.Findings)
	return mountstate.Attribute(slices.Concat(s.result.Findings, found), func(f fault.Finding) *fault.Finding { return &f })[known:]
}

// addFinding adds the code of a finding. The first says what a person can do.
func (c *familyCheck) addFinding(f fault.Finding) {
	if len(c.Codes) == 0 {
		c.Next = printable.Clip(fault.Known().NextStep(f), maxMessage)
	}
	if !slices.Contains(c.Codes, f.Code) {
		c.Codes = append(c.Codes, f.Code)
	}
}

// checksByPod are one check for each pod with a finding, or that of the node if there is none.
func checksByPod(check familyCheck, findings []fault.Finding) []familyCheck {
	var all []familyCheck
	for _, f := range findings {
		i := slices.IndexFunc(all, func(o familyCheck) bool { return o.Namespace == f.Pod.Namespace && o.Pod == f.Pod.Name })
		if i < 0 {
			i, all = len(all), append(all, familyCheck{Family: check.Family, Namespace: f.Pod.Namespace, Pod: f.Pod.Name})
		}
		all[i].addFinding(f)
	}
	if len(all) == 0 || check.Error != "" || len(check.Unjudged) > 0 {
		all = append(all, check)
	}
	return all
}

// finalResult is the result, or the error of those that could not look.
func (s *checkSum) finalResult(request processor.Request, nothing string, looks int) (processor.Result, error) {
	if len(s.result.Findings) == 0 && len(s.errs) > 0 {
		return processor.Result{}, repair.JoinErrors(s.errs)
	}
	if err := processor.AddJSON(s.result.Values, map[string]any{keyChecks: s.checks}); err != nil {
		return processor.Result{}, err
	}
	if len(s.result.Findings)+len(s.result.Unjudged) > 0 {
		return s.result, nil
	}
	if nothing == "" {
		nothing = fmt.Sprintf("No mount fault was found on node %s by %d checks", request.Node, looks)
		if len(s.checks) == 1 && s.checks[0].Message != "" {
			nothing = fmt.Sprintf("No mount fault was found on node %s: %s", request.Node, s.checks[0].Message)
		}
	}
	s.result.NoFault, s.result.Message = true, nothing
	return s.result, nil
}
