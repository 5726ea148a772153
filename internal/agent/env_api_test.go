// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
)

// configDir is the folder of the manifests.
const configDir = "../../config"

// serviceAccount is the name of a ServiceAccount of kubediag as the API server knows it.
func serviceAccount(name string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kubediag:" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kubediag", "system:authenticated"},
	}
}

func impersonate(config *rest.Config, who rest.ImpersonationConfig) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate = who
	return config
}

var installing sync.Once

// installDefault applies config/default, once for all tests.
func installDefault(t *testing.T) *apitest.Env {
	t.Helper()
	env := apitest.Start(t)
	installing.Do(func() { runKubectl(t, env, "", "apply", "-k", filepath.Join(configDir, "default")) })
	return env
}

// runKubectl runs the command that users run, with input on its standard input, and gives its output.
func runKubectl(t *testing.T, env *apitest.Env, input string, args ...string) string {
	t.Helper()
	program, err := cluster.Kubectl(t.Context())
	must(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+apitest.Kubeconfig(t, env.Config))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// testNode is a node for one test, and the agent on it.
type testNode struct {
	name    string
	options options
	config  *rest.Config

	stop     context.CancelFunc
	ended    chan error
	registry *prometheus.Registry
}

// newTestNode makes a node whose agent has the rights that the manifests give it. The kubelet on it is the test.
func newTestNode(t *testing.T, name string, config *rest.Config) *testNode {
	t.Helper()
	return &testNode{
		name:   name,
		config: impersonate(config, serviceAccount("kubediag-agent")),
		options: options{
			NodeName: name, Namespace: "kubediag", DataRoot: t.TempDir(), KubeletRoot: t.TempDir(), KubeletPID: os.Getpid(),
			MetricsBindAddress: "0", HealthProbeBindAddress: "0", DiagnosisTimeout: time.Minute, Workers: 4, OrphanMinimumAge: 10 * time.Minute,
			LeaseRenewal: time.Second, LeaseDuration: 4 * time.Second,
		},
	}
}

// startAgent starts the agent, which is stopped when the test ends or stopAgent is called.
func (n *testNode) startAgent(t *testing.T) {
	t.Helper()
	must(t, n.options.validate())
	ctx, stop := context.WithCancel(t.Context())
	n.stop, n.ended, n.registry = stop, make(chan error, 1), prometheus.NewRegistry()
	go func() { n.ended <- runAgent(ctx, n.config, n.options, n.registry) }()
	t.Cleanup(func() { n.stopAgent(t) })
}

func (n *testNode) stopAgent(t *testing.T) {
	t.Helper()
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop = nil
	if err := <-n.ended; err != nil {
		t.Errorf("agent: %v", err)
	}
}

// createDiagnosis makes a Diagnosis and does to it what the manager does.
func (n *testNode) createDiagnosis(t *testing.T, env *apitest.Env, name, set string) *v1.Diagnosis {
	t.Helper()
	d := n.diagnosis(name, set)
	n.bind(t, env, d)
	return d
}

// bind creates a Diagnosis and gives it a place, as the manager does.
func (n *testNode) bind(t *testing.T, env *apitest.Env, d *v1.Diagnosis) {
	t.Helper()
	env.MustCreate(t, d)
	givePlace(d)
	must(t, env.Client.Status().Update(t.Context(), d))
}

// givePlace notes in a Diagnosis that it has a place.
func givePlace(d *v1.Diagnosis) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1.ConditionBound, Status: metav1.ConditionTrue, Reason: v1.ReasonPlaceFound, Message: "Diagnosis has a place",
		ObservedGeneration: d.Generation,
	})
}

func (n *testNode) diagnosis(name, set string) *v1.Diagnosis {
	return &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{v1.LabelNode: v1.NodeLabelValue(n.name)},
		},
		Spec: v1.DiagnosisSpec{OperationSet: set, NodeName: n.name},
	}
}

// createPod makes a pod that runs on a node.
func createPod(t *testing.T, env *apitest.Env, name, node string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	env.MustCreate(t, p)
	return p
}

// awaitPhase waits for a phase.
func awaitPhase(t *testing.T, env *apitest.Env, d *v1.Diagnosis, phase v1.DiagnosisPhase) *v1.Diagnosis {
	t.Helper()
	now := d.DeepCopy()
	env.Until(t, now, func() bool { return now.Status.Phase == phase })
	return now
}

// createOperations makes Operations, one after the other in an OperationSet of the same name, and does to the set what
// the manager does. A target is the path of a built-in processor or the URL of another.
func createOperations(t *testing.T, env *apitest.Env, name string, targets ...string) {
	t.Helper()
	set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	set.Spec.AdjacencyList = []v1.Node{{ID: 0, To: []int32{1}}}
	for i, target := range targets {
		op := &v1.Operation{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i+1)}, Spec: v1.OperationSpec{Processor: processorAt(t, target)}}
		env.MustCreate(t, op)
		n := v1.Node{ID: int32(i + 1), Operation: op.Name}
		if i+1 < len(targets) {
			n.To = []int32{n.ID + 1}
		}
		set.Spec.AdjacencyList = append(set.Spec.AdjacencyList, n)
	}
	env.MustCreate(t, set)
	set.Status = v1.OperationSetStatus{Ready: true, ObservedGeneration: set.Generation}
	must(t, env.Client.Status().Update(t.Context(), set))
}

func processorAt(t *testing.T, target string) v1.Processor {
	t.Helper()
	rest, external := strings.CutPrefix(target, "http://")
	if !external {
		return v1.Processor{Path: &target}
	}
	address, path, _ := strings.Cut(rest, "/")
	host, port, err := net.SplitHostPort(address)
	must(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	must(t, err)
	path = "/" + path
	return v1.Processor{ExternalAddress: &host, ExternalPort: new(int32(number)), Path: &path}
}

// httpProcessor is an HTTP processor that counts how often it is asked, and answers what do says.
type httpProcessor struct {
	*httptest.Server
	mu    sync.Mutex
	calls int
	now   int
	most  int // at once
}

func newExternal(t *testing.T, do func(ctx context.Context, call int)) *httpProcessor {
	t.Helper()
	e := &httpProcessor{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = http.MaxBytesReader(w, r.Body, 1<<20).Read(make([]byte, 1<<20))
		e.mu.Lock()
		e.calls++
		e.now++
		e.most = max(e.most, e.now)
		call := e.calls
		e.mu.Unlock()
		if do != nil {
			do(r.Context(), call)
		}
		e.mu.Lock()
		e.now--
		e.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"test.%s":"%d"}`, strings.Trim(r.URL.Path, "/"), call)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *httpProcessor) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}
