// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podstatus"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// Diagnoser is the processor autoDiagnoser.
type Diagnoser struct {
	Pods kubelet.Pods
	// Lister is nil if the pods of the node are not known: then only those that are named are looked at.
	Lister   Lister
	Families []Family
}

// Name is autoDiagnoser.
func (*Diagnoser) Name() string { return "autoDiagnoser" }

// Parameters are those of all diagnosers.
func (d *Diagnoser) Parameters() []string {
	var parts []any
	for _, f := range d.Families {
		parts = append(parts, f.Diagnoser)
	}
	return parameters(parts...)
}

// Run has every family look that applies. A family that cannot look fails the whole only if no other has found a fault:
// what was found can be repaired.
func (d *Diagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	nothing := "" // what to say if nothing is found
	if r.Pod != (processor.Pod{}) {
		pod, elsewhere, err := podref.Load(ctx, d.Pods, r)
		if err != nil || elsewhere != "" {
			return processor.Result{NotApplicable: elsewhere}, err
		}
		nothing = podstatus.Sentence(pod, r.Pod.Container)
	}
	targets, err := d.targets(r)
	if err != nil {
		return processor.Result{}, err
	}
	s := sum{result: processor.Result{Values: map[string]string{}, Files: map[string]string{}}, named: r.Pod.Name != ""}
	for _, t := range targets {
		one, err := t.Diagnoser.Run(ctx, t.request)
		if ctx.Err() != nil {
			return processor.Result{}, context.Cause(ctx)
		}
		s.add(t, one, err)
	}
	return s.end(r, nothing, len(targets))
}

// deviceParameters name a device.
var deviceParameters = []string{device.ParamDevice, device.ParamPersistentVolume, device.ParamMessage}

// targets are what is to be looked at.
func (d *Diagnoser) targets(r processor.Request) ([]target, error) {
	named := slices.ContainsFunc(deviceParameters, func(key string) bool { return r.Values[key] != "" })
	if named && r.Pod.Name != "" {
		return nil, processor.Stalled(errors.New("read spec: a pod and a device are named; a device may be held by other pods, so name the " +
			"node and the device, or the pod alone"))
	}
	var all []target
	for i := range d.Families {
		f := &d.Families[i]
		switch {
		case r.Pod.Name != "" && f.Scope <= Volumes, r.Pod.Name == "" && !named && f.Scope != Pods, named && f.Scope == Devices:
			all = append(all, target{f, r})
		case r.Pod.Name == "" && !named:
			all = append(all, d.eachPod(f, r)...)
		}
	}
	return all, nil
}

func (d *Diagnoser) eachPod(f *Family, r processor.Request) []target {
	if d.Lister == nil {
		return nil
	}
	var all []target
	for _, pod := range d.Lister.PodsHere() {
		all = append(all, target{f, about(r, pod.Namespace, pod.Name)})
	}
	slices.SortFunc(all, func(a, b target) int { return compare(a.request.Pod, b.request.Pod) })
	return all
}

// collected begins the keys of collectors, whose results are long lists.
const collected = "collector."

// sum is what all looks have found.
type sum struct {
	result processor.Result
	checks []check
	errs   []error
	// named is whether a pod is: then every look is listed.
	named bool
}

func (s *sum) add(t target, one processor.Result, err error) {
	c := check{Family: t.Name, Namespace: t.request.Pod.Namespace, Pod: t.request.Pod.Name, Message: printable.Clip(one.NotApplicable, maxMessage)}
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound) && !s.named:
		return // it went while others were looked at
	case err != nil:
		c.Error = printable.Clip(err.Error(), maxMessage)
		s.errs = append(s.errs, fmt.Errorf("%s: %w", t.Name, err))
	}
	s.result.Findings = append(s.result.Findings, one.Findings...)
	for key, value := range one.Values {
		into := s.result.Values
		if strings.HasPrefix(key, collected) {
			into = s.result.Files
		}
		if _, ok := into[key]; !ok { // of several, the first
			into[key] = value
		}
	}
	if t.request.Pod.Name == "" && t.Scope == Volumes {
		s.checks = append(s.checks, ofPods(c, one.Findings)...)
		return
	}
	for _, f := range one.Findings {
		if !slices.Contains(c.Codes, f.Code) {
			c.Codes = append(c.Codes, f.Code)
		}
	}
	if t.request.Pod.Name == "" || s.named || c.Error != "" || len(c.Codes) > 0 {
		s.checks = append(s.checks, c)
	}
}

// ofPods are one check for each pod with a finding, or that of the node if there is none.
func ofPods(c check, findings []fault.Finding) []check {
	var all []check
	for _, f := range findings {
		i := slices.IndexFunc(all, func(o check) bool { return o.Namespace == f.Pod.Namespace && o.Pod == f.Pod.Name })
		if i < 0 {
			i, all = len(all), append(all, check{Family: c.Family, Namespace: f.Pod.Namespace, Pod: f.Pod.Name})
		}
		if !slices.Contains(all[i].Codes, f.Code) {
			all[i].Codes = append(all[i].Codes, f.Code)
		}
	}
	if len(all) == 0 || c.Error != "" {
		all = append(all, c)
	}
	return all
}

// end is the result, or the error of those that could not look.
func (s *sum) end(r processor.Request, nothing string, looks int) (processor.Result, error) {
	if len(s.result.Findings) == 0 && len(s.errs) > 0 {
		return processor.Result{}, all(s.errs)
	}
	text, err := json.Marshal(s.checks)
	if err != nil {
		return processor.Result{}, fmt.Errorf("encode %q: %w", KeyChecks, err)
	}
	s.result.Values[KeyChecks] = string(text)
	if len(s.result.Findings) > 0 {
		return s.result, nil
	}
	if nothing == "" {
		nothing = fmt.Sprintf("No mount fault was found on node %s by %d checks", r.Node, looks)
		if len(s.checks) == 1 && s.checks[0].Message != "" {
			nothing = fmt.Sprintf("No mount fault was found on node %s: %s", r.Node, s.checks[0].Message)
		}
	}
	s.result.NoFault, s.result.Message = true, nothing
	return s.result, nil
}

// all is the error of several families. It is worth another try if one of them is.
func all(errs []error) error {
	first := max(0, slices.IndexFunc(errs, func(err error) bool { return !processor.IsStalled(err) }))
	var others []string
	for i, err := range errs {
		if i != first {
			others = append(others, err.Error())
		}
	}
	if len(others) == 0 {
		return errs[first]
	}
	return fmt.Errorf("%w; %s", errs[first], processor.JoinReasons(others, maxSaid))
}
