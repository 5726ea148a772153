// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package scale

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
)

var (
	nodes = flag.Int("nodes", 500, "nodes with a Lease and a MountFault each")
	ended = flag.Int("ended", 2000, "Diagnoses that have ended")
)

func TestMain(m *testing.M) { fakenode.Main(m, nil) }

const (
	namespace = "default"
	past      = "past" // the namespace of the Diagnoses that have ended. No test clears it: that takes the API server minutes
	writers   = 64     // requests at once while the cluster is filled
)

// large is a cluster without kubelets.
type large struct {
	*fakenode.Node
	client client.Client
	config *rest.Config
	set    *kubernetes.Clientset
	env    *apitest.Env
}

func newLarge(b *testing.B) *large {
	b.Helper()
	env := apitest.Start(b)
	config := rest.CopyConfig(env.Config)
	config.QPS, config.Burst = -1, 0
	node := fakenode.New(b)
	c, err := client.New(config, client.Options{Scheme: node.Scheme()})
	must(b, err)
	set, err := kubernetes.NewForConfig(config)
	must(b, err)
	return &large{Node: node, client: c, config: config, set: set, env: env}
}

// each calls make for 0 to n-1, several at once.
func each(b *testing.B, n int, make func(ctx context.Context, i int) error) {
	b.Helper()
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(writers)
	for i := range n {
		g.Go(func() error { return make(ctx, i) })
	}
	must(b, g.Wait())
}

func nodeName(i int) string { return fmt.Sprintf("scale-%05d", i) }

// addNodes makes the nodes, with the objects of their agents, if they are not there yet.
func (l *large) addNodes(b *testing.B) {
	b.Helper()
	each(b, *nodes, func(ctx context.Context, i int) error {
		node := nodeName(i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		seconds, now := int32(40), metav1.NowMicro()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1.AgentLeaseName(node), Labels: map[string]string{v1.LabelAgent: v1.NodeLabelValue(node)},
		}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now}}
		for _, o := range []client.Object{n, lease, newFault(node, "stays", "OrphanedPodVolumes")} {
			if err := client.IgnoreAlreadyExists(l.client.Create(ctx, o)); err != nil {
				return err
			}
		}
		return nil
	})
}

func newDiagnosis(name, node string) *v1.Diagnosis {
	return &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.DiagnosisSpec{OperationSet: "subpath-remount-op-set", NodeName: node},
	}
}

// newFault is a fault of a node, as its agent writes it.
func newFault(node, name, code string) *v1.MountFault {
	return &v1.MountFault{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node + "-" + name, Labels: map[string]string{v1.LabelNode: v1.NodeLabelValue(node)}},
		Status: v1.MountFaultStatus{
			Code: code, Node: node, Impact: v1.ImpactCleanup, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(),
			Summary: "The directory of a pod that is gone cannot be removed", Evidence: []string{"volumes are left"},
		},
	}
}

// served sums the API server's own counts of a name, over the series that have all the labels.
func (l *large) served(b *testing.B, name string, labels ...string) (sum float64) {
	b.Helper()
	text, err := l.set.RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
	must(b, err)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+"{") || !has(line, labels) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		must(b, err)
		sum += value
	}
	must(b, lines.Err())
	return sum
}

func has(line string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(line, l) {
			return false
		}
	}
	return true
}

// usage is the time and memory that a process has used.
type usage struct {
	at  time.Time
	cpu time.Duration
	mib float64
}

// used reads /proc, see proc_pid_stat(5). The clock of CPU times has 100 ticks a second on all architectures of Linux.
func used(b *testing.B, pid int) usage {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		must(b, err)
		ticks += n
	}
	memory := kerneltest.MemoryOf(b, pid, "VmRSS")
	return usage{time.Now(), time.Duration(ticks) * 10 * time.Millisecond, float64(memory) / (1 << 20)}
}

// since is the part of one processor that was used since an earlier reading, in percent.
func (u usage) since(before usage) float64 {
	return 100 * float64(u.cpu-before.cpu) / float64(u.at.Sub(before.at))
}

var must = kerneltest.Must
