// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/sentinel"
)

// TestOnlyWhatLastsIsNotJudged: a mount that one look could not judge counts if the next could not, either, and so does a part of the node of which
// the looks skip different numbers. While there is no look, nothing is judged.
func TestOnlyWhatLastsIsNotJudged(t *testing.T) {
	t.Parallel()
	place := func(volume, reason string) mountstate.Place {
		return mountstate.Place{Pod: fault.Pod{UID: "u"}, Volume: volume, Point: "/k/" + volume, Reason: reason}
	}
	unknown := func(skipped int, places ...mountstate.Place) mountstate.Unknown {
		u := mountstate.Unknown{Places: places}
		u.AddSkipped(fmt.Sprintf("the mounts of %d mount namespaces with the most", skipped))
		return u
	}
	type answer struct {
		unknown mountstate.Unknown
		err     error
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var answers []answer
		next := func(list ...answer) {
			mu.Lock()
			defer mu.Unlock()
			answers = list
		}
		watching := true
		c := &coverage{log: logr.Discard(), watching: func() bool { return watching }, look: func(context.Context) (mountstate.Survey, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(answers) == 0 {
				return mountstate.Survey{}, nil
			}
			a := answers[0]
			answers = answers[1:]
			return mountstate.Survey{Unknown: a.unknown}, a.err
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Start(ctx) }()
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := c.notJudged(); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		check("before the first look", v1.NothingJudged)
		first := unknown(7, place("a", "busy"), place("b", "busy"))
		later := unknown(12, place("b", "denied"), place("c", "busy"))
		next(answer{first, nil}, answer{later, nil}, answer{first, nil}, answer{err: errors.New("kubelet not found")}, answer{first, nil})
		time.Sleep(firstCoverage)
		check("after the first look", v1.NothingJudged)
		time.Sleep(coverageAgain)
		check("after two looks", "2")
		if text := c.unknown.Sentences(); len(text) != 2 || text[0] != place("b", "denied").String() || !strings.HasPrefix(text[1], "the mounts of 12 ") {
			t.Errorf("sentences %q", text)
		}
		watching = false
		check("with a watcher that is stuck", v1.NothingJudged)
		watching = true
		time.Sleep(2 * coverageAgain)
		check("after three looks", "2")
		time.Sleep(4 * coverageAgain)
		check("after an error", v1.NothingJudged)
		time.Sleep(8 * coverageAgain)
		check("after the first look since", v1.NothingJudged)
		time.Sleep(coverageEvery)
		check("when all is judged", "")
		next(answer{first, nil}, answer{})
		time.Sleep(coverageEvery)
		check("when one look could not judge something", "")
		time.Sleep(coverageAgain)
		check("and the next one could", "")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLooksAtSources: a missing hostPath is a fault of a container that waits for it. The search passes over containers that run.
func TestLooksAtSources(t *testing.T) {
	t.Parallel()
	const uid = "7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "pods", uid), 0o755))
	node, err := kubelet.Local(root)
	must(t, err)
	pod := kubelettest.WaitingPod(uid, root+"/missing", corev1.ContainerStateWaiting{Reason: "ContainerCreating"})
	a := &agent{pods: &nodePods{}, watched: &volume.Inspector{}}
	look := func() []fault.Finding {
		t.Helper()
		found := a.looks()[fault.SearchSources].Inspector.(nodeLook)
		survey, err := nodeLook{found.search, node, found.node}.Look(t.Context(), mountstate.Scope{})
		must(t, err)
		return survey.Findings
	}
	a.pods.replacePod(nil, pod)
	if found := look(); len(found) != 1 || found[0].Code != fault.MissingBindSource || found[0].Pod.Name != "web" || found[0].Container != "app" {
		t.Errorf("of a container that waits: %+v", found)
	}
	running := pod.DeepCopy()
	running.Status.Phase = corev1.PodRunning
	running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	a.pods.replacePod(pod, running)
	if found := look(); len(found) != 0 {
		t.Errorf("of a container that runs: %+v", found)
	}
}

// TestSentinelMakesEachSearch when something happens, or from time to time.
func TestSentinelMakesEachSearch(t *testing.T) {
	t.Parallel()
	looks := (&agent{pods: &nodePods{}, watched: &volume.Inspector{}}).looks()
	for _, search := range fault.Searches() {
		if _, made := looks[search]; made == slices.Contains(sentinel.Watched, search) {
			t.Errorf("%s: made from time to time is %t, want either that or a watch of the sentinel", search, made)
		}
	}
}
