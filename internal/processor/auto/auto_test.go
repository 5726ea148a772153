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
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// nodePods are those of the node, by name, in the namespace shop.
type nodePods []string

func (p nodePods) PodsHere() []*corev1.Pod {
	var all []*corev1.Pod
	for _, name := range p {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName = "shop", name, types.UID("uid-"+name), "n1"
		all = append(all, pod)
	}
	return all
}

func (p nodePods) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	for _, pod := range p.PodsHere() {
		if pod.Name == name {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", kubelet.ErrPodNotFound, name)
}

// fakeFamily is a family of its own: what is broken, by pod, empty for the node, and what repairing does.
type fakeFamily struct {
	name   string
	code   fault.Code
	broken map[string]bool
	// unjudged, over and leftOver are fields of the result. mount is the mount of each finding.
	unjudged, over, leftOver []string
	mount                    fault.Mount
	// wide is whether it is asked about all pods at once.
	wide bool
	// refuses, where it is set, is why nothing is planned; the others fail what they say.
	refuses                 string
	looks, plans, applies   error
	verifies                error
	asked, planned, applied []string
}

func (m *fakeFamily) Name() string { return m.name }

func (m *fakeFamily) findingOf(pod string) fault.Finding {
	return fault.Finding{Code: m.code, Pod: fault.Pod{Namespace: "shop", Name: pod}, Volume: m.name, Mount: m.mount}
}

func (m *fakeFamily) Run(_ context.Context, request processor.Request) (processor.Result, error) {
	m.asked = append(m.asked, request.Pod.Name)
	if m.looks != nil {
		return processor.Result{}, m.looks
	}
	result := processor.Result{Values: map[string]string{"collector.long": "list", "result." + m.name: request.Pod.Name}, Unjudged: m.unjudged, Over: m.over, LeftOver: m.leftOver}
	for _, pod := range slices.Sorted(func(yield func(string) bool) {
		for pod := range m.broken {
			if !yield(pod) {
				return
			}
		}
	}) {
		if m.broken[pod] && (pod == request.Pod.Name || m.wide && request.Pod.Name == "") {
			result.Findings = append(result.Findings, m.findingOf(pod))
		}
	}
	if len(result.Findings) == 0 {
		result.NotApplicable = m.name + " is whole"
	}
	return result, nil
}

// fakeRecoverer is the recoverer of a member.
type fakeRecoverer struct{ *fakeFamily }

func (m fakeRecoverer) Plan(_ context.Context, request processor.Request) (repair.Part, error) {
	m.planned = append(m.planned, request.Pod.Name)
	switch {
	case m.plans != nil:
		return repair.Part{}, m.plans
	case m.refuses != "":
		return repair.Part{NotApplicable: m.refuses}, nil
	case !m.broken[request.Pod.Name]:
		return repair.Part{NotApplicable: "nothing is broken", Gone: []fault.Absence{{Code: m.code}}}, nil
	}
	return repair.Part{
		Actions:  []fault.Action{{Kind: fault.Unmount, For: []fault.Key{{Code: m.code}}, Mount: &fault.Mount{Point: "/" + m.name + "/" + request.Pod.Name}, Lossless: true}},
		Findings: []fault.Finding{m.findingOf(request.Pod.Name)},
		Notes:    map[string]string{"of": m.name},
	}, nil
}

func (m fakeRecoverer) Open() repair.Apply {
	return func(_ context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
		m.applied = append(m.applied, a.Mount.Point+" of "+r.Pod.Name)
		return fault.Applied{}, m.applies
	}
}

func (m fakeRecoverer) Verify(_ context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	if m.verifies != nil {
		return processor.Result{}, m.verifies
	}
	if len(plan.Actions) != 1 || len(plan.Applied) != 1 || plan.Notes["of"] != m.name || plan.Findings[0].Pod.Name != request.Pod.Name {
		return processor.Result{}, fmt.Errorf("verify %+v for pod %q", plan, request.Pod.Name)
	}
	return processor.Result{Findings: processor.MarkHealed(plan.Findings, nil), Values: map[string]string{"healed." + m.name: request.Pod.Name}}, nil
}

// autoScene is three families and the pods of a node.
type autoScene struct {
	nodePods
	subPath, volume, device *fakeFamily
}

func newAutoScene() *autoScene {
	return &autoScene{
		nodePods: nodePods{"b", "a"},
		subPath:  &fakeFamily{name: "subPath", code: fault.StaleSubPath, broken: map[string]bool{}},
		volume:   &fakeFamily{name: "volume", code: fault.DisconnectedFUSE, broken: map[string]bool{}, wide: true},
		device:   &fakeFamily{name: "device", code: fault.HeldDevice, broken: map[string]bool{}},
	}
}

func (s *autoScene) testFamilies(wrap func(repair.Family) repair.Family) []Family {
	family := func(m *fakeFamily, scope Scope) Family {
		var r repair.Family = fakeRecoverer{m}
		if wrap != nil {
			r = wrap(r)
		}
		return Family{Name: m.name, Scope: scope, Diagnoser: m, Remedies: []Remedy{{Family: r, Codes: []fault.Code{m.code}}}}
	}
	return []Family{family(s.subPath, Pods), family(s.volume, Volumes), family(s.device, Devices)}
}

func (s *autoScene) runDiagnoser(t *testing.T, r processor.Request) (processor.Result, []familyCheck) {
	t.Helper()
	result, err := (&Diagnoser{Pods: s, Lister: s, Families: s.testFamilies(nil)}).Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var found []familyCheck
	if err := json.Unmarshal([]byte(result.Values[keyChecks]), &found); err != nil {
		t.Fatal(err)
	}
	return result, found
}

// runRecoverer does all that the pipeline does, and gives the end.
func (s *autoScene) runRecoverer(t *testing.T, request processor.Request) (repair.Plan, processor.Result, error) {
	t.Helper()
	found, _ := s.runDiagnoser(t, request)
	request.Values = found.Values
	return s.planAndExecute(t, s.testFamilies(nil), request)
}

// planAndExecute has families repair what was found before.
func (s *autoScene) planAndExecute(t *testing.T, families []Family, request processor.Request) (repair.Plan, processor.Result, error) {
	t.Helper()
	plan, err := (&Recoverer{Families: families}).Plan(t.Context(), request)
	if err != nil {
		return plan, processor.Result{}, err
	}
	var known []repair.Family
	for _, f := range families {
		known = append(known, f.Remedies[0].Family)
	}
	result, err := repairtest.NewEngine(known...).Execute(t.Context(), request, &plan, repairtest.NewJournal(plan))
	return plan, result, err
}

func podRequest(name string) processor.Request {
	return processor.Request{Node: "n1", Pod: processor.Pod{Namespace: "shop", Name: name}}
}

var nodeRequest = processor.Request{Node: "n1"}

// TestFamiliesThatApply to what is named are asked, and no others.
func TestFamiliesThatApply(t *testing.T) {
	t.Parallel()
	named := processor.Request{Node: "n1", Values: map[string]string{device.ParamDevice: "rbd0"}}
	for name, tc := range map[string]struct {
		request                 processor.Request
		subPath, volume, device []string
		message                 string
	}{
		"pod":    {podRequest("a"), []string{"a"}, []string{"a"}, []string{"a"}, "No mount fault was found: the kubelet still creates containers of pod shop/a; kubectl describe pod -n shop a shows what they wait for"},
		"node":   {nodeRequest, []string{"a", "b"}, []string{""}, []string{""}, "No mount fault was found on node n1 by 4 checks"},
		"device": {named, nil, nil, []string{""}, "No mount fault was found on node n1: device is whole"},
	} {
		s := newAutoScene()
		result, _ := s.runDiagnoser(t, tc.request)
		if diff := cmp.Diff([][]string{tc.subPath, tc.volume, tc.device}, [][]string{s.subPath.asked, s.volume.asked, s.device.asked}); diff != "" {
			t.Errorf("%s: asked (-want +got):\n%s", name, diff)
		}
		if !result.NoFault || result.Message != tc.message || len(result.Findings) > 0 {
			t.Errorf("%s: %+v", name, result)
		}
		if result.Values["collector.long"] != "" || result.Files["collector.long"] != "list" {
			t.Errorf("%s: long results are in the status", name)
		}
	}
	_, err := (&Diagnoser{Pods: nodePods{"a"}}).Run(t.Context(), processor.Request{Node: "n1", Pod: podRequest("a").Pod, Values: named.Values})
	if !processor.IsStalled(err) || !strings.Contains(err.Error(), "a pod and a device are named") {
		t.Errorf("a pod and a device: %v", err)
	}
	elsewhere, err := (&Diagnoser{Pods: nodePods{"a"}}).Run(t.Context(), processor.Request{Node: "n2", Pod: podRequest("a").Pod})
	if err != nil || elsewhere.NotApplicable == "" || elsewhere.NoFault {
		t.Errorf("a pod of another node: %+v, %v", elsewhere, err)
	}
}

// TestEveryFamilyIsRepaired in one plan, for a node with the pods that have a fault.
func TestEveryFamilyIsRepaired(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.broken, s.volume.broken, s.device.broken = map[string]bool{"a": true}, map[string]bool{"a": true, "b": true}, map[string]bool{"": true}
	plan, result, err := s.runRecoverer(t, nodeRequest)
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Parts) != 4 || len(plan.Actions()) != 4 {
		t.Errorf("parts %+v", plan.Parts)
	}
	want := [][]string{{"/subPath/a of a"}, {"/volume/a of a", "/volume/b of b"}, {"/device/ of "}}
	if diff := cmp.Diff(want, [][]string{s.subPath.applied, s.volume.applied, s.device.applied}); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if len(result.Findings) != 4 || slices.ContainsFunc(result.Findings, func(f fault.Finding) bool { return !f.Healed }) || result.Message != "" {
		t.Errorf("result %+v", result)
	}
	s = newAutoScene()
	s.subPath.broken, s.volume.broken = map[string]bool{"a": true, "b": true}, map[string]bool{"b": true}
	if plan, _, err = s.runRecoverer(t, podRequest("a")); err != nil || len(plan.Actions()) != 1 || plan.Parts[0].Pod.Name != "a" {
		t.Errorf("for one pod: %+v, %v", plan.Parts, err)
	}
	s.device.broken = map[string]bool{"": true, "a": true, "b": true}
	if plan, result, err = s.runRecoverer(t, podRequest("a")); err != nil || len(result.Findings) != 2 || !slices.Equal(s.device.applied, []string{"/device/a of a"}) {
		t.Errorf("with a device: %+v, %v; applied for %v", plan.Parts, err, s.device.applied)
	}
}

// TestOneFailsAndTheOthersGoOn, at each step.
// TestFaultGoesBeforeItsRepair has the kubelet be quicker than the repair of one family.
func TestFaultGoesBeforeItsRepair(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.broken["a"], s.volume.broken["a"] = true, true
	request := podRequest("a")
	found, _ := s.runDiagnoser(t, request)
	request.Values = found.Values
	delete(s.subPath.broken, "a")
	plan, result, err := s.planAndExecute(t, s.testFamilies(nil), request)
	if err != nil || len(plan.Actions()) != 1 || plan.Actions()[0].Key().Code != fault.DisconnectedFUSE || result.Message != "nothing is broken" {
		t.Fatalf("plan %+v, %+v, %v", plan, result, err)
	}
	if diff := cmp.Diff([]fault.Absence{{Code: fault.StaleSubPath}}, plan.Gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
}

func TestOneFailsAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad luck")
	for name, tc := range map[string]struct {
		fail    func(m *fakeFamily)
		message string // of the end, where it is a success
	}{
		"look":   {func(m *fakeFamily) { m.looks = bad }, "it could not be looked for: bad luck. Next: "},
		"plan":   {func(m *fakeFamily) { m.plans = bad }, "bad luck. Next: " + fault.Known().Entry(fault.DisconnectedFUSE).Next},
		"refuse": {func(m *fakeFamily) { m.refuses = "it is in use" }, "it is in use. Next: " + fault.Known().Entry(fault.DisconnectedFUSE).Next},
		"apply":  {func(m *fakeFamily) { m.applies = bad }, ""},
		"verify": {func(m *fakeFamily) { m.verifies = bad }, ""},
	} {
		s := newAutoScene()
		s.subPath.broken, s.volume.broken = map[string]bool{"a": true}, map[string]bool{"a": true}
		tc.fail(s.volume)
		_, result, err := s.runRecoverer(t, podRequest("a"))
		if (err != nil) != (name == "apply" || name == "verify") || !strings.HasPrefix(result.Message, tc.message) {
			t.Errorf("%s: %v, message %q", name, err, result.Message)
		}
		healed := slices.IndexFunc(result.Findings, func(f fault.Finding) bool { return f.Healed })
		if healed < 0 || result.Findings[healed].Code != fault.StaleSubPath {
			t.Errorf("%s: %+v", name, result.Findings)
		}
		if refused := result.Values[keyRefused]; (refused != "") != (tc.message != "") {
			t.Errorf("%s: refused %s", name, refused)
		}
	}
}

// TestNothingCouldBeSeen is an error and not a clean answer.
func TestNothingCouldBeSeen(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.looks, s.volume.looks = processor.Stalled(errors.New("never")), errors.New("not now")
	_, err := (&Diagnoser{Pods: s, Lister: s, Families: s.testFamilies(nil)}).Run(t.Context(), podRequest("a"))
	if err == nil || processor.IsStalled(err) || !strings.Contains(err.Error(), "never") || !strings.Contains(err.Error(), "not now") {
		t.Errorf("error %v", err)
	}
}

// TestUnjudgedIsNotClean: without a fault nothing clean is said; with one it is repaired, and the rest is named.
func TestUnjudgedIsNotClean(t *testing.T) {
	t.Parallel()
	for _, request := range []processor.Request{podRequest("a"), nodeRequest} {
		s := newAutoScene()
		s.volume.unjudged = []string{`volume "v": host is down`}
		result, checks := s.runDiagnoser(t, request)
		if result.NoFault || result.Message != "" || !slices.Equal(result.Unjudged, s.volume.unjudged) {
			t.Errorf("result %+v", result)
		}
		if err := processor.UnjudgedError(result); !processor.IsUnjudged(err) || err.Error() != `not everything could be judged: volume "v": host is down` {
			t.Errorf("error %v", err)
		}
		if !slices.ContainsFunc(checks, func(c familyCheck) bool { return c.Family == "volume" && slices.Equal(c.Unjudged, s.volume.unjudged) }) {
			t.Errorf("checks %+v", checks)
		}
		s.subPath.broken["a"] = true
		if result, _ = s.runDiagnoser(t, request); processor.UnjudgedError(result) != nil {
			t.Errorf("a fault and something unjudged: %+v", result)
		}
		plan, proof, err := s.runRecoverer(t, request)
		if err != nil || len(plan.Actions()) != 1 || !strings.Contains(proof.Message, `it could not be judged: volume "v": host is down`) {
			t.Errorf("plan %+v, proof %+v, %v", plan, proof, err)
		}
	}
}

// leavingPods are the states of pods.
type leavingPods []leaving.State

func (p leavingPods) Inspect(context.Context, ...*corev1.Pod) ([]leaving.State, error) { return p, nil }

// TestPodsThatAreDeleted are clean only as long as the kubelet takes them down.
func TestPodsThatAreDeleted(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	for _, request := range []processor.Request{podRequest("a"), nodeRequest} {
		d := &Diagnoser{Pods: s, Lister: s, Families: s.testFamilies(nil), Leaving: leavingPods{{Text: "pod shop/a goes"}}}
		result, err := d.Run(t.Context(), request)
		if err != nil || !result.NoFault || request.Pod.Name != "" && result.Message != "No mount fault was found: pod shop/a goes" {
			t.Errorf("%+v, %v", result, err)
		}
		d.Leaving = leavingPods{{Text: "pod shop/a stays", Remains: &leaving.Remains{RunsUnknown: "no answer"}}}
		if result, err = d.Run(t.Context(), request); err != nil || result.NoFault || !slices.Equal(result.Unjudged, []string{"pod shop/a stays"}) {
			t.Errorf("%+v, %v", result, err)
		}
		left := leaving.Remains{Pod: fault.Pod{Namespace: "shop", Name: "a", UID: "uid-a"}, Path: "/k/pods/uid-a", Over: true}
		d.Leaving = leavingPods{{Text: "pod shop/a stays", Remains: &left}}
		if result, err = d.Run(t.Context(), request); err != nil || len(result.Findings) != 1 || result.Findings[0].Code != fault.StuckTermination {
			t.Errorf("%+v, %v", result, err)
		}
		plan, err := (&Recoverer{Families: d.Families}).Plan(t.Context(), processor.Request{Node: request.Node, Pod: request.Pod, Values: result.Values})
		if err != nil || len(plan.Parts) != 0 || !strings.Contains(plan.Message, "look at the kubelet's log") {
			t.Errorf("%+v, %v", plan, err)
		}
	}
}

// TestOneMountIsOneFault where two families find the same mount broken: the first has it.
func TestOneMountIsOneFault(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.broken["a"], s.volume.broken["a"] = true, true
	s.subPath.mount, s.volume.mount = fault.Mount{ID: 7, Namespace: 1}, fault.Mount{ID: 7, Namespace: 1}
	result, checks := s.runDiagnoser(t, podRequest("a"))
	if len(result.Findings) != 1 || result.Findings[0].Code != fault.StaleSubPath || len(checks[1].Codes) != 0 {
		t.Errorf("findings %+v, checks %+v", result.Findings, checks)
	}
	s.volume.mount.ID = 8
	if result, _ = s.runDiagnoser(t, podRequest("a")); len(result.Findings) != 2 {
		t.Errorf("of two mounts: %+v", result.Findings)
	}
}

// TestAFaultWithoutARemedy is refused in the diagnoser's words, with a next step.
func TestAFaultWithoutARemedy(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.broken = map[string]bool{"a": true}
	families := s.testFamilies(nil)
	s.subPath.code = fault.MissingBindSource
	found, err := (&Diagnoser{Pods: s, Families: families}).Run(t.Context(), podRequest("a"))
	if err != nil {
		t.Fatal(err)
	}
	request := podRequest("a")
	request.Values = found.Values
	p, result, err := s.planAndExecute(t, families, request)
	if err != nil || len(p.Parts) > 0 || result.NoFault || !strings.HasSuffix(result.Message, fault.Known().Entry(fault.MissingBindSource).Next) {
		t.Errorf("result %+v, %v", result, err)
	}
}

// TestPlanNeedsTheDiagnoser: alone the recoverer changes nothing.
func TestPlanNeedsTheDiagnoser(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	h := &Recoverer{Families: s.testFamilies(nil)}
	for _, values := range []map[string]string{nil, {keyChecks: "no list"}} {
		if _, err := h.Plan(t.Context(), processor.Request{Node: "n1", Values: values}); !processor.IsStalled(err) {
			t.Errorf("%v: %v", values, err)
		}
	}
	// A result that names a pod does not lead to another than the one of the Diagnosis.
	s.subPath.broken = map[string]bool{"b": true}
	forged := podRequest("a")
	forged.Values = map[string]string{keyChecks: `[{"family":"subPath","namespace":"shop","pod":"b","codes":["StaleSubPath"]},{"family":"none","codes":["HeldDevice"]}]`}
	if p, err := h.Plan(t.Context(), forged); err != nil || len(p.Parts) > 0 || !slices.Equal(s.subPath.planned, []string{"a"}) {
		t.Errorf("plan %+v, %v; planned for %v", p, err, s.subPath.planned)
	}
}

// TestSentencesDecideNothing: reworded recoverers end the same.
func TestSentencesDecideNothing(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.subPath.broken, s.volume.broken = map[string]bool{"a": true}, map[string]bool{"a": true}
	found, _ := s.runDiagnoser(t, podRequest("a"))
	request := podRequest("a")
	request.Values = found.Values
	reworded := s.testFamilies(func(r repair.Family) repair.Family { return processortest.Reworded{Family: r} })
	if plan, result, err := s.planAndExecute(t, reworded, request); err != nil || len(plan.Actions()) != 2 || len(result.Findings) != 2 || !result.Findings[0].Healed {
		t.Errorf("plan %+v, result %+v, %v", plan, result, err)
	}
}

// TestPartsAreBounded, and the rest is said to be left.
func TestPartsAreBounded(t *testing.T) {
	t.Parallel()
	s := newAutoScene()
	s.nodePods = nil
	for i := range maxParts + 3 {
		name := fmt.Sprintf("p%02d", i)
		s.nodePods, s.subPath.broken[name] = append(s.nodePods, name), true
	}
	p, result, err := s.runRecoverer(t, nodeRequest)
	if err != nil || len(p.Parts) != maxParts || strings.Count(result.Values[keyRefused], "another run") != 3 {
		t.Errorf("%d parts, %v, refused %s", len(p.Parts), err, result.Values[keyRefused])
	}
}

// fakeLinks has one volume that is not there.
type fakeLinks struct {
	place mountstate.Place
	err   error
	asked []string // the UIDs of scopes
}

func (f *fakeLinks) Look(_ context.Context, s mountstate.Scope) (sum mountstate.Survey, err error) {
	f.asked = append(f.asked, strings.Join(s.PodUIDs, ","))
	sum.Unknown.AddPlace(f.place)
	return sum, f.err
}

// strayMounts look at a node with these mounts, which no pod is known to want, and with two mount namespaces that could not be read.
type strayMounts []mountstate.Classified

func (m strayMounts) Look(context.Context, mountstate.Scope) (mountstate.Survey, error) {
	return mountstate.Survey{Mounts: m, Coverage: mountstate.Coverage{Namespaces: &mountns.Survey{Partial: 2}}}, nil
}

// TestMountsThatNoPodWants are not clean on a node, but for those of which a look proves that they are of no pod. Mount namespaces that could not be
// read are not clean, either.
func TestMountsThatNoPodWants(t *testing.T) {
	t.Parallel()
	mounts := strayMounts{
		{Mount: mountstate.Mount{Point: "/k/pods/uid-a/stray"}, Pod: fault.Pod{UID: "uid-a"}, Class: mountstate.Unproven, Reason: "no pod wants it"},
		{Mount: mountstate.Mount{Point: "/k/pods/uid-b/stray"}, Pod: fault.Pod{UID: "uid-b"}, Class: mountstate.Unproven, Reason: "no pod wants it"},
		{Mount: mountstate.Mount{Point: "/k/plugins/staged"}, Class: mountstate.Unproven, Reason: "no pod has it"},
	}
	const unread = "parts of 2 mount namespaces"
	for name, c := range map[string]struct {
		over, leftOver []string
		goes           leavingPods
		want           []string // the beginnings of the sentences
	}{
		"nothing is proven":  {want: []string{`pod "uid-a" at`, `pod "uid-b" at`, `"/k/plugins/staged"`, unread}},
		"a pod is over":      {over: []string{"uid-b"}, want: []string{`pod "uid-a" at`, `"/k/plugins/staged"`, unread}},
		"a pod cannot go":    {goes: leavingPods{{Remains: &leaving.Remains{Pod: fault.Pod{UID: "uid-a"}, Over: true}}}, want: []string{`pod "uid-b" at`, `"/k/plugins/staged"`, unread}},
		"a staging path too": {over: []string{"uid-a", "uid-b"}, leftOver: []string{"/k/plugins/staged"}, want: []string{unread}},
	} {
		s := newAutoScene()
		s.volume.over, s.volume.leftOver = c.over, c.leftOver
		result, err := (&Diagnoser{Pods: s, Lister: s, Families: s.testFamilies(nil), Links: mounts, Leaving: c.goes}).Run(t.Context(), nodeRequest)
		if err != nil || result.NoFault || !slices.EqualFunc(result.Unjudged, c.want, strings.HasPrefix) {
			t.Errorf("%s: %v, not judged %q, want %q", name, err, result.Unjudged, c.want)
		}
	}
}

// TestVolumesThatAreNotThere are not clean, for a pod and for a node. Nothing more is said about a volume with a fault.
func TestVolumesThatAreNotThere(t *testing.T) {
	t.Parallel()
	place := mountstate.Place{Pod: fault.Pod{Namespace: "shop", Name: "a"}, Volume: "volume", Point: "/v", Reason: "nothing is mounted there"}
	named := processor.Request{Node: "n1", Values: map[string]string{device.ParamDevice: "rbd0"}}
	for name, c := range map[string]struct {
		request processor.Request
		broken  bool
		err     error
		asked   []string
		want    []string // that is not judged
	}{
		"pod":                      {request: podRequest("a"), asked: []string{"uid-a"}, want: []string{place.String()}},
		"node":                     {request: nodeRequest, asked: []string{""}, want: []string{place.String()}},
		"node with a fault of it":  {request: nodeRequest, broken: true, asked: []string{""}},
		"device":                   {request: named},
		"it could not look":        {request: nodeRequest, err: errors.New("bad luck"), asked: []string{""}},
		"nor look, with a finding": {request: nodeRequest, err: errors.New("bad luck"), broken: true, asked: []string{""}},
	} {
		s, l := newAutoScene(), &fakeLinks{place: place, err: c.err}
		s.volume.broken["a"] = c.broken
		result, err := (&Diagnoser{Pods: s, Lister: s, Families: s.testFamilies(nil), Links: l}).Run(t.Context(), c.request)
		if wantError := c.err != nil && !c.broken; (err != nil) != wantError {
			t.Errorf("%s: error %v", name, err)
		}
		if !slices.Equal(l.asked, c.asked) || err == nil && (!slices.Equal(result.Unjudged, c.want) || result.NoFault != (name == "device")) {
			t.Errorf("%s: asked %q, %+v", name, l.asked, result)
		}
	}
}
