// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
	"kubediag.org/kubediag/test/freeport"
)

const (
	holders, guessers = 200, 20 // strangers that hold connections, and that guess tokens
	holdTime          = 30 * time.Second
	holdGap, guessGap = time.Second, time.Second / 2
	alertTimeout      = time.Minute
	otherNode         = "taken-over"
)

// sender is who may send alerts, and where to.
type sender struct {
	address, token string
	client         *http.Client
}

func newSender(b *testing.B, n *fakenode.Node) sender {
	b.Helper()
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	must(b, err)
	set := apitest.Clientset(b, n.Config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sender"}}
	must(b, client.IgnoreAlreadyExists(n.Create(b.Context(), account)))
	right := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "sender"}}
	right.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	right.Subjects = []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "sender"}}
	_, err = set.RbacV1().ClusterRoleBindings().Create(b.Context(), right, metav1.CreateOptions{})
	must(b, client.IgnoreAlreadyExists(err))
	seconds := int64(24 * 60 * 60)
	token, err := set.CoreV1().ServiceAccounts("default").CreateToken(b.Context(), account.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: []string{"kubediag"}},
	}, metav1.CreateOptions{})
	must(b, err)
	return sender{address: free[0].String(), token: token.Status.Token, client: clientFrom("127.0.0.1")}
}

// clientFrom is a client with a loopback address of its own, which does not check the certificate that the manager has made.
func clientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: alertTimeout, Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // of a test
	}}
}

// alert sends one, and gives an error if it is not taken.
func (s *sender) alert(ctx context.Context) error {
	status, err := s.post(ctx, s.client, s.token)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the receiver answers %d", status)
	}
	return err
}

func (s *sender) post(ctx context.Context, c *http.Client, token string) (status int, err error) {
	const body = `[{"labels":{"alertname":"Broken","node":"` + fakenode.NodeName + `"}}]`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+"/api/v2/alerts", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// estrange has strangers of many addresses hold connections and guess tokens. A guess that is let in is an error.
func (s *sender) estrange(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, guessers)
	for i := range holders {
		all.Go(func() { s.hold(ctx, fmt.Sprintf("127.0.%d.2", 1+i%50)) })
	}
	for i := range guessers {
		all.Go(func() { errs[i] = s.guess(ctx, fmt.Sprintf("127.1.%d.2", 1+i%10)) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// hold opens one connection after another and asks nothing.
func (s *sender) hold(ctx context.Context, address string) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	for ctx.Err() == nil {
		if conn, err := dialer.DialContext(ctx, "tcp", s.address); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(holdTime))
			_, _ = conn.Read(make([]byte, 1)) // until it is closed
			_ = conn.Close()
		}
		pauseFor(ctx, holdGap)
	}
}

// guess sends wrong tokens.
func (s *sender) guess(ctx context.Context, address string) error {
	c := clientFrom(address)
	for ctx.Err() == nil {
		status, err := s.post(ctx, c, fmt.Sprintf("%032x", rand.Uint64()))
		if err == nil && status == http.StatusOK {
			return errors.New("a wrong token is let in")
		}
		pauseFor(ctx, guessGap)
	}
	return nil
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tired reports whether the API server had no time for a request, which says nothing about kubediag.
func tired(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
}

// forger is the agent of another node that was taken over. The policy for agents is in force.
type forger struct {
	client.Client
	tally *tally
}

func newForger(b *testing.B, n *fakenode.Node, counts *tally) *forger {
	b.Helper()
	env := &apitest.Env{Config: n.Config, Client: n.WithWatch}
	config := env.Limited(b, "agent", "default")
	config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {otherNode}}
	config.QPS = -1
	env.PolicyFor(b, "agent-node.yaml", "agent", config.Impersonate.UserName)
	must(b, client.IgnoreAlreadyExists(n.Create(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: otherNode}})))
	c, err := client.New(rest.CopyConfig(config), client.Options{Scheme: n.Scheme()})
	must(b, err)
	f := &forger{Client: c, tally: counts}
	apitest.Eventually(b, func() error { // until roles and policies are in force
		if err := f.Create(b.Context(), f.fault(0, otherNode, "shared"), client.DryRunAll); err != nil {
			return err
		}
		for _, o := range f.forbidden() {
			if err := f.Create(b.Context(), o, client.DryRunAll); !apierrors.IsForbidden(err) {
				return fmt.Errorf("%T %s is not refused: %w", o, o.GetName(), err)
			}
		}
		return nil
	})
	return f
}

// fault is a MountFault with failed repairs to come.
func (f *forger) fault(i int, node, namespace string) *v1.MountFault {
	later := metav1.NewTime(time.Now().Add(100 * 365 * 24 * time.Hour))
	m := &v1.MountFault{Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Node: node, Impact: v1.ImpactNow, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: later,
		Recovery: &v1.FaultRecovery{Mode: v1.RecoveryAutomatic, Policies: []string{"shared"}, FailedRepairs: 1000, LastFailureTime: &later},
	}}
	m.Namespace, m.Name, m.Labels = namespace, fmt.Sprintf("%s-%d", otherNode, i), map[string]string{v1.LabelNode: node}
	return m
}

// lease is one that lasts for ever.
func (f *forger) lease(name, holder string) *coordinationv1.Lease {
	later, seconds := metav1.NewMicroTime(time.Now().Add(100*365*24*time.Hour)), int32(1<<30)
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &later, LeaseDurationSeconds: &seconds}}
	l.Namespace, l.Name = "default", name
	return l
}

// forbidden are objects that the policy refuses, by their description: of another node, and slots of budgets for periods to come.
func (f *forger) forbidden() map[string]client.Object {
	slot := fmt.Sprintf("kubediag-slot-%016x-%d-0", rand.Uint64(), time.Now().Add(time.Hour).UnixMilli())
	labelled := f.fault(1, otherNode, "shared")
	labelled.Labels[v1.LabelNode] = fakenode.NodeName
	record := &v1.Diagnosis{Spec: v1.DiagnosisSpec{Mode: v1.ModeRecord, NodeName: otherNode}}
	record.Namespace, record.Name = "default", "forged"
	record.Labels = map[string]string{v1.LabelNode: fakenode.NodeName, v1.LabelOrigin: v1.OriginSentinel}
	return map[string]client.Object{
		"a MountFault of another node": f.fault(2, fakenode.NodeName, "shared"), "a MountFault with the label of another node": labelled,
		"a record with the label of another node": record, "a slot of a period to come": f.lease(slot, otherNode),
		"the Lease of another agent": f.lease(v1.AgentLeaseName("a-third"), otherNode), "its own Lease, held by another": f.lease(v1.AgentLeaseName(otherNode), "a-third"),
	}
}

// forge makes the writes that the policy allows, in the namespaces of the victims, and tries those that it refuses.
func (f *forger) forge(ctx context.Context) error {
	for i := 0; ; i++ {
		if pauseFor(ctx, requestGap); isOver(ctx) {
			return nil
		}
		for _, namespace := range victimSpaces {
			if err := f.tally.allowed("a forged MountFault of its own node", f.Create(ctx, f.fault(i%200, otherNode, namespace))); err != nil {
				return err
			}
		}
		if err := f.tally.allowed("its own Lease for ever", f.Create(ctx, f.lease(v1.AgentLeaseName(otherNode), otherNode))); err != nil {
			return err
		}
		for attempt, o := range f.forbidden() {
			if err := f.tally.refused(attempt, f.Create(ctx, o)); err != nil && !isOver(ctx) {
				return err
			}
		}
	}
}

// isOver reports whether the attacks end: their errors are none then.
func isOver(ctx context.Context) bool { return ctx.Err() != nil }
