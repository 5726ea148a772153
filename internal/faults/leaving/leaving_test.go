// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

const uid = "7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"

var deleted = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)

// runtime has the records of the pod's containers.
type runtime []cri.Container

func (r runtime) PodRecords(context.Context, string) ([]cri.Container, error) { return r, nil }

func leavingPod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid, DeletionTimestamp: new(metav1.NewTime(deleted))}}
	return pod
}

// newRoot is a kubelet's root in which the pod has the directory of a volume, if that is not empty.
func newRoot(t *testing.T, volume string) *kubelet.Node {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", uid, volume), 0o755); err != nil {
		t.Fatal(err)
	}
	node, err := kubelet.Local(root)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// TestPodThatGoes is late 30 seconds after its grace period and the end of its last container, and no sooner.
func TestPodThatGoes(t *testing.T) {
	t.Parallel()
	ended := func(at time.Duration) runtime { return runtime{{Name: "app", Exited: true, Finished: deleted.Add(at)}} }
	for name, tc := range map[string]struct {
		after   time.Duration
		runtime runtime
		volume  string
		stuck   bool
		want    string
	}{
		"in its grace period":      {-time.Second, nil, "volumes/kubernetes.io~secret/s", false, "is being deleted, and the kubelet is taking it down"},
		"just over":                {29 * time.Second, nil, "volumes/kubernetes.io~secret/s", false, "and the kubelet is taking it down"},
		"long over":                {31 * time.Second, ended(0), "volumes/kubernetes.io~secret/s", true, `its last container has ended, but this is still there: the directory of volume "s" at "`},
		"a container ended late":   {time.Hour, ended(time.Hour - 29*time.Second), "volumes/kubernetes.io~secret/s", false, "and the kubelet is taking it down"},
		"a container ended":        {time.Hour, ended(time.Hour - 31*time.Second), "volumes/kubernetes.io~secret/s", true, "its last container has ended"},
		"a container runs":         {time.Hour, runtime{{Name: "app"}}, "volumes/kubernetes.io~secret/s", false, `and it still runs: container "app", which has not ended`},
		"a raw block volume":       {time.Hour, ended(0), "volumeDevices/kubernetes.io~csi/pvc-1", true, `volume "pvc-1"`},
		"no directory of a volume": {time.Hour, ended(0), "volumes", false, "nothing of it is mounted on this node any more"},
		"no directory":             {time.Hour, ended(0), "", false, "nothing of it is mounted on this node any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Inspector{Kubelet: newRoot(t, tc.volume), Runtime: tc.runtime, Now: func() time.Time { return deleted.Add(tc.after) }}
			states, err := i.Inspect(t.Context(), &corev1.Pod{}, leavingPod())
			if err != nil || len(states) != 1 {
				t.Fatalf("%+v, %v", states, err)
			}
			if s := states[0]; (s.Remains != nil) != tc.stuck || !strings.HasPrefix(s.Text, "pod shop/web is being deleted") || !strings.Contains(s.Text, tc.want) {
				t.Errorf("%+v\nwant %v, %s", s, tc.stuck, tc.want)
			}
		})
	}
}

// TestSearchesForUsers are bounded for a pod and for a look. A pod that gets none, and one with a user, say so.
func TestSearchesForUsers(t *testing.T) {
	t.Parallel()
	asked := 0
	i := &Inspector{Users: func(context.Context, mountinfo.Mount) ([]Process, error) {
		if asked++; asked == 1 {
			return []Process{{Uses: "a file there is loop device /dev/loop7"}, {PID: 7, Command: "app", Uses: "a file there open", Container: "app", Pod: "shop/other"}}, nil
		}
		return nil, errors.New("2 processes could not be looked into")
	}}
	remains := func() *Remains {
		return &Remains{Over: true, Places: []Place{
			{Kind: OfVolume, NoRecord: "it is missing"}, {Kind: OfVolume, Volume: "a"}, {Kind: OfSubPath, Volume: "b"}, {Kind: OfSubPath, Volume: "c"}, {Kind: Directory},
		}}
	}
	searches, all := 3, []*Remains{remains(), remains(), remains()}
	for _, r := range all {
		i.addUsers(t.Context(), r, &searches)
		r.Places = r.Places[1:] // the one with a cause
	}
	if asked != 3 || searches != 0 {
		t.Errorf("asked %d times, %d searches are left", asked, searches)
	}
	found := all[0].Judge()
	if len(found) != 1 || found[0].Details.Reason != fault.ReasonInUse || found[0].Details.HeldBy == nil || found[0].Details.HeldBy.PID != 7 ||
		!strings.Contains(found[0].Evidence[0], "a file there is loop device /dev/loop7") ||
		!strings.Contains(strings.Join(found[0].Evidence, "\n"), `process app[7] of container "app" of pod shop/other has a file there open`) {
		t.Errorf("the first: %+v", found)
	}
	for n, r := range all[1:] {
		found := r.Judge()
		if len(found) != 1 || found[0].Details.Reason != fault.ReasonNotTakenDown || !strings.Contains(strings.Join(found[0].Evidence, "\n"), "no user was looked for") {
			t.Errorf("%d: %+v", n+1, found)
		}
	}
}

// TestPodThatIsKept by a finalizer has nothing on the node.
func TestPodThatIsKept(t *testing.T) {
	t.Parallel()
	pod := leavingPod()
	pod.Finalizers = []string{"example.com/a", "example.com/b"}
	states, err := (&Inspector{Kubelet: newRoot(t, "")}).Inspect(t.Context(), pod)
	if err != nil || states[0].Remains != nil || !strings.HasSuffix(states[0].Text, "; its finalizers keep it: example.com/a, example.com/b") {
		t.Errorf("%+v, %v", states, err)
	}
}

// TestForgedUID cannot lead out of the directory of the pods.
func TestForgedUID(t *testing.T) {
	t.Parallel()
	pod := leavingPod()
	pod.UID = "../../etc"
	if states, err := (&Inspector{Kubelet: newRoot(t, "")}).Inspect(t.Context(), pod); err == nil {
		t.Errorf("%+v", states)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Inspector{Kubelet: newRoot(t, "")}).Inspect(canceled, leavingPod()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestKilledInKernel: a thread counts if it waits in the kernel and has a SIGKILL that it has not taken, by itself or with its process.
func TestKilledInKernel(t *testing.T) {
	t.Parallel()
	const status = "Name:\tdd\nUmask:\t0022\nState:\t%s\nTgid:\t7\nThreads:\t1\nSigPnd:\t%s\nShdPnd:\t%s\nSigBlk:\t0000000000000100\n"
	const none, kill, others = "0000000000000000", "0000000000000100", "00000000ffffeeff"
	for name, c := range map[string]struct {
		state, own, shared string
		want               bool
	}{
		"its own":              {"D (disk sleep)", kill, none, true},
		"that of its process":  {"D (disk sleep)", none, kill, true},
		"with others":          {"D (disk sleep)", none, "00000000000147a3", true},
		"other signals alone":  {"D (disk sleep)", others, others, false},
		"no signal":            {"D (disk sleep)", none, none, false},
		"it can take the kill": {"S (sleeping)", kill, kill, false},
		"it runs":              {"R (running)", kill, kill, false},
	} {
		if text := fmt.Sprintf(status, c.state, c.own, c.shared); killedInKernel.MatchString(text) != c.want {
			t.Errorf("%s: not %v of\n%s", name, c.want, text)
		}
	}
}
