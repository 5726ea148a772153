// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
)

const (
	managerMemory = 1 << 30          // what its container may take, by its Deployment
	victimPods    = 6                // in each of two namespaces, with a ConfigMap each
	victimGap     = 10 * time.Second // so that the victims need less than their share of the budgets
	tenantPods    = 3                // in each of two namespaces
	tenantVolumes = 40               // in all more than a node has MountFaults
	tenantFiles   = 3                // of each volume
	tenantGap     = 60 * time.Millisecond
	townBinds     = 2*victimPods + 2*tenantPods*tenantVolumes*tenantFiles
	maxObjects    = 160 // largest ones of a kind at a time, and
	costlyObjects = 3   // of kinds that the API server takes slowly
	objectGap     = 30 * time.Second
	requestGap    = time.Second // between two Diagnoses of the tenant, and two requests of the agent that was taken over
)

// townPolicies: two namespaces share the budgets of a policy. In two others no policy has anything repaired, and each fault makes a Trigger
// ask for a Diagnosis.
const townPolicies = `
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryPolicy
metadata: {name: shared}
spec:
  mode: Automatic
  faultCodes: [StaleSubPath]
  namespaceSelector: {matchLabels: {town: shared}}
  budgets:
    node: {atOnce: 40, perHour: 3600}
  breaker: {failedRepairs: 5, maximumNodesPercent: 20}
---
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryPolicy
metadata: {name: rest}
spec:
  mode: Automatic
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
---
apiVersion: diagnosis.kubediag.org/v1
kind: Trigger
metadata: {name: asked}
spec:
  operationSet: subpath-remount-op-set
  repeatIntervalSeconds: 20
  sourceTemplate:
    mountFaultTemplate:
      codes: [StaleSubPath]
      namespaceSelector: {matchLabels: {town: asked}}
---
apiVersion: diagnosis.kubediag.org/v1
kind: Trigger
metadata: {name: alerts}
spec:
  operationSet: subpath-remount-op-set
  mode: Plan
  repeatIntervalSeconds: 30
  sourceTemplate: {prometheusAlertTemplate: {regexp: {alertName: ^Broken$}, nodeNameReferenceLabel: node}}
---
apiVersion: diagnosis.kubediag.org/v1
kind: Trigger
metadata: {name: events}
spec:
  operationSet: subpath-remount-op-set
  mode: Plan
  repeatIntervalSeconds: 30
  sourceTemplate: {kubernetesEventTemplate: {regexp: {reason: ^Failed$, namespace: ^tenant-}}}
`

// town is a node's pods in namespaces of their own, with a manager: victims, whose binds become stale and are healed, and a tenant.
type town struct {
	*coast
	manager *fakenode.Agent
	// shared are healed by the sentinel, within budgets that the tenant has part in. asked are healed by Diagnoses that a Trigger makes.
	shared, asked rota
	sender        sender
	tenant        []*fakenode.Volume
	mallory       *tenant // who may use the namespaces of these
	agent         *forger // of another node
	tally         tally
	renewed       atomic.Int64 // volumes of the tenant
	counted       int64
}

func newTown(b *testing.B, c *coast) *town {
	b.Helper()
	t := &town{coast: c}
	for name, kind := range map[string]string{"shared": "shared", "tenant-shared": "shared", "asked": "asked", "tenant-asked": "asked"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"town": kind}}}
		must(b, client.IgnoreAlreadyExists(c.Create(b.Context(), ns)))
		b.Cleanup(func() {
			must(b, c.DeleteAllOf(context.WithoutCancel(b.Context()), &corev1.Pod{}, client.InNamespace(name), client.GracePeriodSeconds(0)))
		})
	}
	b.Cleanup(func() { t.describe(b) })
	t.apply(b, townPolicies)
	certificate, err := os.ReadFile("../../config/components/alert-receiver/certificate.yaml")
	must(b, err)
	t.apply(b, string(certificate))
	one := func(namespace string) rota {
		layout := fakenode.Layout{Namespace: namespace, Volumes: 1, Binds: 1}
		return rota{volumes: c.AddPods(b, "victim", victimPods, layout), gap: victimGap, patience: repairDeadline}
	}
	t.shared, t.asked = one("shared"), one("asked")
	for _, namespace := range []string{"tenant-shared", "tenant-asked"} {
		layout := fakenode.Layout{Namespace: namespace, Volumes: tenantVolumes, Binds: tenantFiles}
		t.tenant = append(t.tenant, c.AddPods(b, "tenant", tenantPods, layout)...)
	}
	c.Build(b, "manager", "")
	t.sender = newSender(b, c.Node)
	agents := os.Getenv("GOMEMLIMIT")
	b.Setenv("GOMEMLIMIT", strconv.Itoa(managerMemory/10*9))
	t.manager = c.LaunchManager(b, "--alert-bind-address="+t.sender.address)
	b.Setenv("GOMEMLIMIT", agents)
	apitest.Eventually(b, func() error { return t.sender.alert(b.Context()) })
	return t
}

// apply creates objects in the namespace that kubediag has here, where they are not there yet, and takes them away in the end.
func (t *town) apply(b *testing.B, manifest string) {
	b.Helper()
	for _, o := range apitest.Objects(b, manifest) {
		if o.GetNamespace() != "" {
			o.SetNamespace("default")
		}
		must(b, client.IgnoreAlreadyExists(t.Create(b.Context(), o)))
		b.Cleanup(func() {
			must(b, client.IgnoreNotFound(t.Delete(context.WithoutCancel(b.Context()), o)))
		})
	}
}

// describe logs the known facts about the victims, if the benchmark has failed.
func (t *town) describe(b *testing.B) {
	if !b.Failed() {
		return
	}
	ctx := context.WithoutCancel(b.Context())
	var faults v1.MountFaultList
	var triggers v1.TriggerList
	var diagnoses v1.DiagnosisList
	for _, list := range []client.ObjectList{&faults, &triggers, &diagnoses} {
		if err := t.List(ctx, list); err != nil {
			b.Error(err)
		}
	}
	for _, f := range faults.Items {
		if f.Status.Pod != nil && (f.Namespace == "shared" || f.Namespace == "asked") {
			b.Logf("MountFault %s/%s: %+v", f.Namespace, f.Name, f.Status)
		}
	}
	for _, tr := range triggers.Items {
		b.Logf("Trigger %s: %+v", tr.Name, tr.Status)
	}
	for _, d := range diagnoses.Items {
		if p := d.Spec.PodReference; p != nil && (p.Namespace == "shared" || p.Namespace == "asked") {
			b.Logf("Diagnosis %s of %s/%s: made %s, begun %v, ended %v, %s: %s", d.Name, p.Namespace, p.Name, d.CreationTimestamp.UTC().Format(time.TimeOnly),
				d.Status.StartTime, d.Status.CompletionTime, d.Status.Phase, d.Status.Summary)
		}
	}
}

// broken is how many binds of the tenant became stale since it was asked last.
func (t *town) broken() int {
	now := t.renewed.Load()
	defer func() { t.counted = now }()
	return int(now-t.counted) * tenantFiles
}

// send has the rightful sender send an alert again and again, and returns how long each took.
func (t *town) send(ctx context.Context) (took []time.Duration, err error) {
	for tick := time.NewTicker(victimGap); ; {
		begin := time.Now()
		if err := t.sender.alert(ctx); err != nil && ctx.Err() == nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
		select {
		case <-ctx.Done():
			return took, nil
		case <-tick.C:
		}
	}
}

// attack starts the attacks of the tenant, the taken-over agent and the strangers, until the end of the benchmark.
func (t *town) attack(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var ended []chan error
	t.agent, t.mallory = newForger(b, t.Node, &t.tally), t.newTenant(b)
	for name, does := range map[string]func(context.Context) error{
		"faults": t.renew, "requests": t.request, "objects": t.flood, "agent": t.agent.forge, "strangers": t.sender.estrange,
	} {
		result := make(chan error, 1)
		ended = append(ended, result)
		go func() {
			err := does(ctx)
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("attack %s: %w", name, err)
			} else {
				err = nil
			}
			result <- err
		}()
	}
	b.Cleanup(func() {
		cancel()
		for _, result := range ended {
			if err := <-result; err != nil {
				b.Error(err)
			}
		}
	})
}

// renew renews the tenant's volumes without pause, so that 100 binds and more become stale in a second.
func (t *town) renew(ctx context.Context) error {
	for tick, i := time.NewTicker(tenantGap), 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		v := t.tenant[i%len(t.tenant)]
		if err := v.Prepare(); err != nil {
			return err
		}
		t.renewed.Add(1)
		if err := v.Renew(); err != nil && !errors.Is(err, unix.EBUSY) { // the agent is just replacing a bind of what is removed
			return err
		}
	}
}
