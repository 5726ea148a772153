// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/test/apitest"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// servers are the API servers that everything must work against.
var servers = map[string]func(testing.TB) *apitest.Env{apitest.Version(): apitest.Start, "1.18": apitest.StartOld}

// patience is a backoff that gives up soon.
var patience = wait.Backoff{Steps: 4, Duration: 10 * time.Millisecond, Factor: 2}

func newTestStore(t *testing.T, config *rest.Config) *statusStore {
	t.Helper()
	scheme, err := kubeclient.NewScheme()
	must(t, err)
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	return &statusStore{client: c, live: c, backoff: patience}
}

// createIgnored makes a Diagnosis that no agent looks at.
func createIgnored(t *testing.T, env *apitest.Env, name string) *v1.Diagnosis {
	t.Helper()
	d := &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       v1.DiagnosisSpec{OperationSet: "set", NodeName: "nowhere"},
	}
	env.MustCreate(t, d)
	return d
}

func readDiagnosis(t *testing.T, env *apitest.Env, d *v1.Diagnosis) *v1.Diagnosis {
	t.Helper()
	now := &v1.Diagnosis{}
	must(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(d), now))
	return now
}

func TestSaveReplacesTheStatus(t *testing.T) {
	t.Parallel()
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			env := start(t)
			diagnosis := createIgnored(t, env, "replaced")
			s := newTestStore(t, env.Config)
			diagnosis.Status = v1.DiagnosisStatus{
				Phase: v1.DiagnosisRunning, Checkpoint: &v1.Checkpoint{NodeIndex: 1}, OperationResults: map[string]string{"old": "x", "both": "x"},
			}
			must(t, s.Save(t.Context(), diagnosis))
			// The manager says meanwhile that the agent is gone.
			patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Unknown"}}`))
			must(t, env.Client.Status().Patch(t.Context(), diagnosis.DeepCopy(), patch))
			want := v1.DiagnosisStatus{Phase: v1.DiagnosisRunning, OperationResults: map[string]string{"new": "y", "both": "y"}}
			diagnosis.Status = want
			must(t, s.Save(t.Context(), diagnosis))
			if diff := cmp.Diff(want, readDiagnosis(t, env, diagnosis).Status); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSaveNeverTouchesAnother(t *testing.T) {
	t.Parallel()
	for version, start := range servers {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			env := start(t)
			s := newTestStore(t, env.Config)
			diagnosis := createIgnored(t, env, "recreated")
			must(t, env.Client.Delete(t.Context(), diagnosis))
			diagnosis.Status.Phase = v1.DiagnosisSucceeded
			if err := s.Save(t.Context(), diagnosis); !errors.Is(err, pipeline.ErrGone) {
				t.Errorf("saving what is deleted: %v", err)
			}
			other := createIgnored(t, env, "recreated")
			if err := s.Save(t.Context(), diagnosis); !errors.Is(err, pipeline.ErrGone) {
				t.Errorf("saving what was created again: %v", err)
			}
			if phase := readDiagnosis(t, env, other).Status.Phase; phase != "" {
				t.Errorf("the other one has phase %q", phase)
			}
		})
	}
}

func TestSaveDoesNotCallAnInvalidStatusGone(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	d := createIgnored(t, env, "invalid")
	d.Status.Phase = "Dancing"
	err := newTestStore(t, env.Config).Save(t.Context(), d)
	if err == nil || errors.Is(err, pipeline.ErrGone) || !strings.Contains(err.Error(), "Dancing") {
		t.Errorf("error %v", err)
	}
}

// failingClient lets the first n requests fail.
type failingClient struct {
	next http.RoundTripper
	left *atomic.Int64
}

func (f failingClient) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.left.Add(-1) >= 0 {
		return nil, errors.New("no route to host")
	}
	return f.next.RoundTrip(r)
}

func TestSaveTriesAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failures int64
		stored   bool
	}{
		"a short outage": {3, true},
		"a long outage":  {100, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := apitest.Start(t)
			diagnosis := createIgnored(t, env, strings.ReplaceAll(name, " ", "-"))
			var left atomic.Int64
			left.Store(tc.failures)
			config := rest.CopyConfig(env.Config)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return failingClient{next, &left} })
			diagnosis.Status.Phase = v1.DiagnosisRunning
			err := newTestStore(t, config).Save(t.Context(), diagnosis)
			if (err == nil) != tc.stored {
				t.Errorf("error %v", err)
			}
			if stored := readDiagnosis(t, env, diagnosis).Status.Phase == v1.DiagnosisRunning; stored != tc.stored {
				t.Errorf("stored: %v", stored)
			}
		})
	}
}

func TestSaveStopsWithItsContext(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	d := createIgnored(t, env, "stopped")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newTestStore(t, env.Config)
	s.backoff = saveBackoff
	if err := s.Save(ctx, d); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of its context", err)
	}
}

func TestDefinitionsThatTheCacheDoesNotHaveYet(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	s := newTestStore(t, env.Config)
	path := "/processor/mountInfoCollector"
	op := &v1.Operation{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: v1.OperationSpec{Processor: v1.Processor{Path: &path}}}
	env.MustCreate(t, op)
	s.client = staleCache{s.client}
	if got, err := s.Operation(t.Context(), "late"); err != nil || got.UID != op.UID {
		t.Errorf("operation %v, error %v", got, err)
	}
	if _, err := s.Operation(t.Context(), "never"); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	if _, err := s.OperationSet(t.Context(), "never"); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// staleCache is a client whose cache has seen nothing yet.
type staleCache struct{ client.Client }

func (staleCache) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	return (&oneDiagnosisCache{}).Get(ctx, key, into)
}

func TestLease(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	long := strings.Repeat("n", 100) + ".example"
	for name, node := range map[string]string{"a short name": "n1", "a long name": long} {
		t.Run(name, func(t *testing.T) {
			l := &agentLease{
				client: env.Client, namespace: env.Namespace(t), node: node,
				renewal: 10 * time.Second, duration: 40 * time.Second, now: func() time.Time { return now },
			}
			for i := range 4 { // made, renewed, by an agent whose predecessor was killed, and by its successor
				l.pages = i == 2
				notJudged := map[int]string{1: "3", 2: v1.NothingJudged}[i]
				l.notJudged = func() string { return notJudged }
				now = now.Add(10 * time.Second)
				must(t, l.renew(t.Context()))
				got := l.newLease()
				must(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(got), got))
				if *got.Spec.HolderIdentity != node || *got.Spec.LeaseDurationSeconds != 40 || !got.Spec.RenewTime.Equal(&metav1.MicroTime{Time: now}) {
					t.Errorf("spec %+v", got.Spec)
				}
				if _, pages := got.Labels[v1.LabelPages]; pages != l.pages {
					t.Errorf("labels %v after %d renewals", got.Labels, i)
				}
				if value, set := got.Labels[v1.LabelNotJudged]; value != notJudged || set != (notJudged != "") {
					t.Errorf("labels %v after %d renewals, want %q", got.Labels, i, notJudged)
				}
				if got.Labels[v1.LabelAgent] != v1.NodeLabelValue(node) || len(got.OwnerReferences) != 0 {
					t.Errorf("metadata %+v", got.ObjectMeta)
				}
				if got.Spec.AcquireTime == nil {
					t.Error("acquireTime is lost")
				}
			}
		})
	}
}

// twoLabels refuses LabelNotJudged, as a policy of an older release does beside two others.
type twoLabels struct{ client.Client }

func (c twoLabels) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if strings.Contains(string(data), `"`+v1.LabelNotJudged+`":"`) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, o.GetName(), errors.New("at most two labels"))
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

// TestLeaseUnderAnOlderPolicy: a policy that refuses LabelNotJudged does not end the renewals.
func TestLeaseUnderAnOlderPolicy(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	l := &agentLease{
		client: twoLabels{env.Client}, namespace: env.Namespace(t), node: "n1", renewal: 10 * time.Second, duration: 40 * time.Second, now: time.Now,
		notJudged: func() string { return "1" },
	}
	must(t, l.renew(t.Context()))
	got := l.newLease()
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(got), got); err != nil || got.Labels[v1.LabelNotJudged] != "" {
		t.Errorf("labels %v, %v", got.Labels, err)
	}
}

// TestLeaseIsRenewed has the Lease deleted meanwhile, as a person may.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	env := apitest.Start(t)
	l := &agentLease{
		client: env.Client, namespace: env.Namespace(t), node: "n1", renewal: 50 * time.Millisecond, duration: time.Second, now: time.Now,
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Start(ctx) }()
	var seen time.Time
	renewed := func() error {
		got := l.newLease()
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(got), got); err != nil {
			return err
		}
		if !got.Spec.RenewTime.After(seen) {
			return fmt.Errorf("renewed at %v, not after %v", got.Spec.RenewTime, seen)
		}
		seen = got.Spec.RenewTime.Time
		return nil
	}
	apitest.Eventually(t, renewed)
	apitest.Eventually(t, renewed)
	must(t, env.Client.Delete(t.Context(), l.newLease()))
	apitest.Eventually(t, renewed)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
