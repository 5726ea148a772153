// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package searches

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

const uid = "7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"

// specs are pods by UID.
type specs map[string]*corev1.Pod

func (s specs) PodByUID(uid string) *corev1.Pod { return s[uid] }

func (s specs) PodsNow(context.Context) (all []metav1.ObjectMeta, err error) {
	for _, pod := range s {
		all = append(all, pod.ObjectMeta)
	}
	return all, nil
}

func (s specs) Listed() (all []*corev1.Pod) {
	for _, pod := range s {
		all = append(all, pod)
	}
	return all
}

// noRuntime is a runtime that knows no container.
type noRuntime struct{}

func (noRuntime) Sandboxes(context.Context) ([]cri.Sandbox, error)                { return nil, nil }
func (noRuntime) PodRecords(context.Context, string) ([]cri.Container, error)     { return nil, nil }
func (noRuntime) Running(context.Context, func(string) bool) ([]cri.Owner, error) { return nil, nil }
func (noRuntime) Owner(context.Context, string) (cri.Owner, error) {
	return cri.Owner{}, errors.New("none")
}

// testNode is a node with the directory of one pod, which mounts a hostPath that is not there.
func testNode(t *testing.T) Node {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", uid, "volumes"), 0o755); err != nil {
		t.Fatal(err)
	}
	local, err := kubelet.Local(root)
	if err != nil {
		t.Fatal(err)
	}
	pod := kubelettest.WaitingPod(uid, root+"/missing", corev1.ContainerStateWaiting{
		Reason: "CreateContainerConfigError", Message: "stat: no such file or directory",
	})
	once := local.ReadOnce()
	return Node{
		Kubelet: once, Specs: specs{uid: pod}, PodUIDs: once.PodUIDs, Prober: &probe.Prober{}, Runtime: noRuntime{},
		OrphanAge: time.Hour,
	}
}

// TestRows hold that a search has words for people, a place of its own in a bundle, and a kind that the catalogue knows.
func TestRows(t *testing.T) {
	t.Parallel()
	entries, kinds := map[string]bool{}, map[fault.Search]bool{}
	for _, s := range All() {
		switch {
		case s.Description == "" || s.Content == "" || !strings.HasPrefix(s.Entry, "evidence/") || !strings.HasSuffix(s.Entry, ".json"):
			t.Errorf("%+v", s)
		case entries[s.Entry], s.Kind != "" && kinds[s.Kind]:
			t.Errorf("%s is there twice", s.Entry)
		case s.Kind != "" && len(fault.Known().FoundBy(s.Kind)) == 0:
			t.Errorf("search %q finds no fault", s.Kind)
		}
		entries[s.Entry], kinds[s.Kind] = true, true
	}
	for _, e := range fault.Known() {
		if !slices.ContainsFunc(e.Searches, func(s fault.Search) bool { return kinds[s] }) {
			t.Errorf("no search finds %s", e.Code)
		}
	}
	list := All()
	list[0] = Search{}
	if All()[0].Entry == "" {
		t.Error("a caller changes the list of all others")
	}
}

// TestEvidenceIsJudgedAlike holds for each search that the evidence of a look, written down and read again, gives the same survey.
func TestEvidenceIsJudgedAlike(t *testing.T) {
	t.Parallel()
	of := testNode(t)
	found := 0
	for _, s := range All() {
		if s.Kind == fault.SearchDevices { // it looks at all of the machine: its kernel tests read its evidence again
			continue
		}
		survey, err := s.On(of).Look(t.Context(), mountstate.Scope{})
		if err != nil {
			t.Errorf("%s: %v", s.Entry, err)
			continue
		}
		if survey.Evidence == nil {
			t.Errorf("%s has no evidence", s.Entry)
			continue
		}
		text, err := json.Marshal(survey.Evidence())
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := Node{Kubelet: kubelet.Elsewhere(of.Kubelet.Root, of.Kubelet.PodsDir()), Specs: of.Specs, PodUIDs: of.PodUIDs}
		again, err := s.Read(text, elsewhere)
		if err != nil {
			t.Errorf("%s: %v", s.Entry, err)
			continue
		}
		judged, err := again.Look(t.Context(), mountstate.Scope{})
		if err != nil {
			t.Errorf("%s: %v", s.Entry, err)
		}
		if diff := cmp.Diff(survey.Findings, judged.Findings); diff != "" {
			t.Errorf("%s: %s", s.Entry, diff)
		}
		if diff := cmp.Diff(survey.Unknown, judged.Unknown); diff != "" {
			t.Errorf("%s: %s", s.Entry, diff)
		}
		found += len(survey.Findings)
	}
	if found != 1 {
		t.Errorf("%d faults, want that of the missing hostPath", found)
	}
}

// TestEvidenceThatIsNone is refused, and a look that is given up is an error.
func TestEvidenceThatIsNone(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, s := range All() {
		if _, err := s.Read([]byte(`"no evidence"`), Node{}); err == nil {
			t.Errorf("%s: a text is read as evidence", s.Entry)
		}
		if s.Kind != fault.SearchSubPaths { // the others may answer from memory
			continue
		}
		if _, err := s.On(testNode(t)).Look(canceled, mountstate.Scope{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", s.Entry, err)
		}
	}
}

// TestUncountedParts: the mounts that no pod is known to want, and the mount namespaces that were read in part, are unknown to all searches together.
func TestUncountedParts(t *testing.T) {
	t.Parallel()
	stray := mountstate.Classified{Mount: mountstate.Mount{Point: "/k/pods/u/stray"}, Pod: fault.Pod{UID: "u"}, Class: mountstate.Unproven, Reason: "no pod wants it"}
	sum := mountstate.Survey{Mounts: []mountstate.Classified{stray}, Coverage: mountstate.Coverage{Namespaces: &mountns.Survey{Partial: 2}}}
	AddUncounted(&sum)
	for _, want := range []string{`pod "u" at "/k/pods/u/stray": no pod wants it`, "parts of 2 mount namespaces: they could not be read"} {
		if !slices.ContainsFunc(sum.Unknown.Sentences(), func(text string) bool { return strings.HasPrefix(text, want) }) {
			t.Errorf("%q is not in %q", want, sum.Unknown.Sentences())
		}
	}
	all := Unread(1, nil, 1)
	if len(all) != 2 || !strings.HasPrefix(all[0].What, "1 process,") || all[1].What != "parts of 1 mount namespace" {
		t.Errorf("gaps %+v", all)
	}
	if all := Unread(0, nil, 0); len(all) > 0 {
		t.Errorf("gaps of a pass that has read all: %+v", all)
	}
	later := mountstate.Unknown{Gaps: Unread(3, nil, 4)}
	if both := later.Also(mountstate.Unknown{Gaps: all}); len(both.Gaps) != 2 || !strings.HasPrefix(both.Gaps[0].What, "3 processes,") {
		t.Errorf("of gaps with other counts, these last: %+v", both.Gaps)
	}
}

// TestUsersOfAMoment: a process that a second search does not find any more keeps no mount.
func TestUsersOfAMoment(t *testing.T) {
	t.Parallel()
	loop := leaving.Process{Uses: "a file there is loop device /dev/loop3"}
	stays := leaving.Process{PID: 7, Command: "rsync", Path: "/k/a"}
	looks := [][]leaving.Process{
		{{PID: 6, Command: "find"}, stays, loop, {Uses: "the kernel swaps to a file there"}},
		{{PID: 7, Command: "rsync", Path: "/k/b"}, {PID: 8, Command: "find"}, loop},
	}
	find := func(context.Context, mountinfo.Mount) (users []leaving.Process, err error) {
		users, looks = looks[0], looks[1:]
		return users, nil
	}
	users, err := lastingUsers(find)(t.Context(), mountinfo.Mount{})
	if diff := cmp.Diff([]leaving.Process{stays, loop}, users); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	looks = [][]leaving.Process{nil}
	if users, err := lastingUsers(find)(t.Context(), mountinfo.Mount{}); len(users) > 0 || err != nil || len(looks) > 0 {
		t.Errorf("no user: %v, %v, %d looks left", users, err, len(looks))
	}
	if got := (leaving.Process{PID: 7, Uses: "a file there open"}).String(); got != "process 7 has a file there open" {
		t.Errorf("a process without a name: %q", got)
	}
}
