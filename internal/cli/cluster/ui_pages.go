// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/approval"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/ui"
)

// nowPage answers the six questions. If the API server is away, it has the last answers and their age.
func (s *pageServer) nowPage(r *http.Request) (ui.Page, error) {
	report, err := s.options.status.readStatus(r.Context(), s.state, s.namespace, time.Now())
	s.mu.Lock()
	if err == nil {
		s.last = report
	}
	report = s.last
	s.mu.Unlock()
	if report == nil {
		return ui.Page{}, err
	}
	p := statusView{faultsView{api: s.api, brief: true, now: report.Time, problems: slices.Clone(report.Unwatched), home: s.options.status.home}, report}.page(s.options.status.language, true)
	if err != nil {
		p.State = ui.Warn
		p.Notes = append([]string{fmt.Sprintf("%v. This is how it was %s ago.", err, time.Since(report.Time).Round(time.Second))}, p.Notes...)
	}
	return p, nil
}

// keyOfPage is the object that the address of a page names.
func keyOfPage(r *http.Request) ctrlclient.ObjectKey {
	return ctrlclient.ObjectKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// faultPage is all that is known of one fault.
func (s *pageServer) faultPage(r *http.Request) (ui.Page, error) {
	f := &v1.MountFault{}
	if err := s.api.server.Get(r.Context(), keyOfPage(r), f); err != nil {
		return ui.Page{}, err
	}
	return s.faultsPage(faultSubject(f), []*v1.MountFault{f}), nil
}

// podPage has all faults of a pod.
func (s *pageServer) podPage(r *http.Request) (ui.Page, error) {
	key := keyOfPage(r)
	found, err := s.api.listFaults(r.Context(), func(f *v1.MountFault) bool {
		p := f.Status.Pod
		return p != nil && p.Name == key.Name && p.Namespace == key.Namespace
	}, ctrlclient.InNamespace(key.Namespace))
	if err != nil {
		return ui.Page{}, err
	}
	p := s.faultsPage(key.String(), found)
	if len(found) == 0 {
		p.Sections = []ui.Section{{Heading: s.options.status.language.Word("Next"), Forms: s.planForms(key.Namespace, key.Name), Commands: []fault.Command{
			{Purpose: "looks for faults of the pod now, and says what else it waits for", Line: s.api.commandLine("run", "pod/"+key.Name, "-n", key.Namespace)},
		}}}
	}
	return p, nil
}

// faultsPage has a section for each fault, and a verdict about the subject.
func (s *pageServer) faultsPage(subject string, found []*v1.MountFault) ui.Page {
	p := ui.Page{Title: "kubediag: " + subject, Made: time.Now(), State: ui.Good, Verdict: "No fault is known of " + subject + "."}
	if len(found) > 0 {
		p.State, p.Verdict = ui.Bad, verdictText(found, subject)
		s.addFaults(&p, found, "-n", found[0].Namespace)
	}
	return p
}

// addFaults adds a section for each fault, and if there are too many how to list the others.
func (s *pageServer) addFaults(p *ui.Page, found []*v1.MountFault, flags ...string) {
	shown, more := ui.First(found, maxRows, ": "+s.api.commandLine(append(append([]string{"faults"}, flags...), "-o", "wide")...))
	for i, f := range shown {
		p.Sections = append(p.Sections, s.faultSection(i+1, f))
	}
	p.Notes = append(p.Notes, more...)
}

// planForms is the button that has a plan made for a pod.
func (s *pageServer) planForms(namespace, pod string) []ui.Form {
	return []ui.Form{{Action: path.Join("/plan", namespace, pod), Label: s.options.status.language.Word("Make a plan, which changes nothing")}}
}

func (s *pageServer) faultSection(number int, f *v1.MountFault) ui.Section {
	language, st := s.options.status.language, f.Status
	entry := fault.Known().Entry(fault.Code(st.Code))
	of := fault.Finding{
		Code: fault.Code(st.Code), Container: st.Container, Volume: st.Volume, Holder: st.Holder, Mount: fault.Mount{Device: st.Device},
		Details: fault.Details{Driver: st.Driver, Device: st.Device},
	}
	podLink := "" // to its page
	if st.Pod != nil {
		of.Pod = fault.Pod{Namespace: st.Pod.Namespace, Name: st.Pod.Name}
		podLink = path.Join("/pod", st.Pod.Namespace, st.Pod.Name)
	}
	section := ui.Section{
		ID: "fault-" + strconv.Itoa(number), Heading: fmt.Sprintf("%d. %s: %s", number, st.Code, language.Title(entry)), Chain: ui.Chain(of),
		Folded: []ui.Folded{{Heading: language.Word("Evidence"), Lines: slices.Clone(st.Evidence)}},
	}
	for _, fact := range []ui.Fact{
		{Name: "what is wrong", Value: st.Summary}, {Name: "since", Value: formatAge(st.Since, time.Now())}, {Name: "hurts", Value: language.Word(verb.Hurts[fault.Impact(st.Impact)])},
		{Name: "pod", Value: faultSubject(f), Link: podLink}, {Name: "workload", Value: workloadName(f)}, {Name: "container", Value: st.Container}, {Name: "volume", Value: st.Volume},
		{Name: "node", Value: st.Node, Link: path.Join("/node", st.Node)}, {Name: "driver", Value: st.Driver}, {Name: "holder", Value: st.Holder}, {Name: "heal", Value: language.Word(healText(f))},
		{Name: "plan", Value: st.Plan}, {Name: "Diagnosis", Value: st.Diagnosis, Link: path.Join("/diagnosis", st.Diagnosis)}, {Name: "repair", Value: language.Repair(entry)},
		{Name: "prevention", Value: language.Prevention(of.Code)},
	} {
		if fact.Value != "" {
			section.Facts = append(section.Facts, fact)
		}
	}
	target := "node/" + st.Node
	if st.Pod != nil {
		target = "pod/" + st.Pod.Name
		section.Forms = s.planForms(st.Pod.Namespace, st.Pod.Name)
	}
	section.Commands = append(section.Commands, fault.Command{Purpose: "its plan; it asks before it heals", Line: s.api.commandLine("run", target, "-n", f.Namespace)})
	for _, c := range st.Commands {
		section.Commands = append(section.Commands, fault.Command{Purpose: "on node " + st.Node + ": " + c.Purpose, Line: c.Line})
	}
	return section
}

func (s *pageServer) readDiagnosis(r *http.Request) (*v1.Diagnosis, error) {
	d := &v1.Diagnosis{}
	return d, s.api.server.Get(r.Context(), keyOfPage(r), d)
}

// withDiagnosis has an action read the Diagnosis that the address names. The action may put another one in its place.
func (s *pageServer) withDiagnosis(do func(*http.Request, *v1.Diagnosis) error) func(*http.Request) (*v1.Diagnosis, error) {
	return func(r *http.Request) (*v1.Diagnosis, error) {
		d, err := s.readDiagnosis(r)
		if err == nil {
			err = do(r, d)
		}
		return d, err
	}
}

// planPod has the agent make a plan for a pod, which changes nothing.
func (s *pageServer) planPod(r *http.Request) (*v1.Diagnosis, error) {
	key := keyOfPage(r)
	target := diagnosisTarget{argument: key.Name, namespace: key.Namespace, spec: v1.DiagnosisSpec{PodReference: &v1.PodReference{Namespace: key.Namespace, Name: key.Name}}}
	d := target.newDiagnosis(v1.ModePlan, "")
	return d, s.api.server.Create(r.Context(), d)
}

// canRepair reports whether a Diagnosis has made a plan of a pod that a click may have carried out.
func canRepair(d *v1.Diagnosis) bool {
	p := d.Status.Plan
	return d.Spec.PodReference != nil && d.Status.Outcome == v1.OutcomePlanned && p != nil && len(p.Changes) > 0 && !planIsHeld(p)
}

// repair has exactly the plan carried out that the page has shown, by another Diagnosis, as the verb run does.
func (s *pageServer) repair(r *http.Request, d *v1.Diagnosis) error {
	if !canRepair(d) || d.Status.Plan.Hash != r.PostFormValue("hash") {
		return fmt.Errorf("%w: the plan of Diagnosis %s/%s is not the one that was shown, or is held", verb.ErrRefused, d.Namespace, d.Name)
	}
	if err := checkChanges(d.Status.Plan, d.Status.Plan.Hash); err != nil {
		return err
	}
	spec := v1.DiagnosisSpec{PodReference: d.Spec.PodReference, Parameters: d.Spec.Parameters, OperationSet: d.Spec.OperationSet}
	made := diagnosisTarget{argument: d.Spec.PodReference.Name, namespace: d.Namespace, spec: spec}.newDiagnosis(v1.ModeRecover, d.Status.Plan.Hash)
	*d = *made
	return s.api.server.Create(r.Context(), d)
}

// approve approves the plan that the page has shown, and no other.
func (s *pageServer) approve(r *http.Request, d *v1.Diagnosis) error {
	p := d.Status.Plan
	a, err := approval.For(d, approval.Options{PlanHash: cmp.Or(r.PostFormValue("hash"), "none"), Expiration: time.Hour})
	if err != nil {
		return fmt.Errorf("%w: %w", verb.ErrRefused, err)
	}
	if p == nil || len(p.Changes) == 0 {
		return fmt.Errorf("%w: the status does not list the changes of plan %s", verb.ErrRefused, a.Spec.PlanHash)
	}
	if err := checkChanges(p, a.Spec.PlanHash); err != nil {
		return err
	}
	if a.Spec.Approver, err = s.api.userName(r.Context()); err != nil {
		return err
	}
	return s.api.server.Create(r.Context(), a)
}

// refuse deletes a Diagnosis whose plan waits for approval.
func (s *pageServer) refuse(r *http.Request, d *v1.Diagnosis) error {
	if stateOf(d) != diagnosisWaits || d.Status.Plan == nil || d.Status.Plan.Hash != r.PostFormValue("hash") {
		return fmt.Errorf("%w: the plan of Diagnosis %s/%s is not the one that was shown", verb.ErrRefused, d.Namespace, d.Name)
	}
	return s.api.server.Delete(r.Context(), d, ctrlclient.Preconditions{UID: &d.UID})
}
