// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package auto answers the question without the name of a fault: it is one diagnoser and one recoverer, and runs those
// of all families of faults that apply to the pod, the node or the device of a Diagnosis.
//
// It judges no mount itself. With a pod it looks at that pod and at the devices behind its volumes only. So the right to
// diagnose a pod reaches the volumes of no other one. With a node it looks at all pods of the node, at its devices, and
// at the directories of pods that are gone; with a device at that device. Each family repairs by its own plan, and a
// failure of one does not keep the others from theirs.
package auto

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyChecks says what each family has found, as JSON: all of them for a pod, and for a node those that found
	// something or could not look.
	keyChecks = "diagnoser.kubernetes.auto.checks"
	// keyRefused says what is still broken and was left alone, why, and what to do, as JSON. It is absent if nothing
	// was.
	keyRefused = "recover.kubernetes.auto.refused"
)

// Family is a kind of faults.
type Family struct {
	Name string
	// Scope says what it is about.
	Scope Scope
	// Diagnoser finds the faults. With Scope Volumes it is asked about all volumes of a node at once.
	Diagnoser processor.Processor
	// Remedies are asked in order, until one of them plans something.
	Remedies []Remedy
}

// Remedy repairs a kind of faults.
type Remedy struct {
	repair.Family
	// Codes are those of the faults that it repairs.
	Codes []fault.Code
	// NamedPodOnly is set if it is only for a pod that the Diagnosis itself names.
	NamedPodOnly bool
}

// Scope is the kind of objects that a family is about.
type Scope int

// Scopes.
const (
	// Pods: one pod. For a node, each pod is looked at.
	Pods Scope = iota
	// Volumes: one pod, or all volumes of a node at once.
	Volumes
	// Devices: the devices of a node, one of them, or those behind the volumes of one pod.
	Devices
	// Node: the node as a whole.
	Node
)

// Lister lists the pods of this node.
type Lister interface {
	// PodsHere returns pods that the caller does not change.
	PodsHere() []*corev1.Pod
}

// familyTarget is a family, and the object that it is to look at.
type familyTarget struct {
	*Family
	request processor.Request
}

// familyCheck is the outcome of one look.
type familyCheck struct {
	Family string `json:"family"`
	// Namespace and Pod name the pod; they are empty for the node.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Codes are the faults that were found, each once.
	Codes []fault.Code `json:"codes,omitempty"`
	// Unjudged are the first sentences about parts that could not be judged.
	Unjudged []string `json:"unjudged,omitempty"`
	// Next is what a person can do about the first of them.
	Next string `json:"next,omitempty"`
	// Message says why nothing was found, Error why it could not be looked for.
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
}

// readChecks reads the findings of the diagnoser. They narrow the plan and explain its gaps; each change
// is found by a recoverer itself.
func readChecks(r processor.Request) ([]familyCheck, error) {
	text, ok := r.Values[keyChecks]
	if !ok {
		return nil, processor.Stalled(fmt.Errorf("read result %q: it is not there: autoDiagnoser must run before", keyChecks))
	}
	var all []familyCheck
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, processor.Stalled(fmt.Errorf("read result %q: %w", keyChecks, err))
	}
	return all, nil
}

// requestFor is the request for a pod of a check.
func requestFor(r processor.Request, namespace, pod string) processor.Request {
	if r.Pod.Name == "" {
		r.Pod = processor.Pod{Namespace: namespace, Name: pod}
	}
	return r
}

// mergeParameters are those of all parts, each once.
func mergeParameters(parts ...any) []string {
	var keys []string
	for _, part := range parts {
		if p, ok := part.(processor.Parameterized); ok {
			keys = append(keys, p.Parameters()...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Bounds of texts.
const (
	maxMessage   = 1000 // bytes of one message
	maxSentences = 5    // sentences in one message
)

// Collector is the processor autoCollector. It keeps details on the node for people who doubt the answer.
type Collector struct {
	// OfPod run where a pod is named, OfNode always.
	OfPod, OfNode []processor.Processor
}

// Name is autoCollector.
func (*Collector) Name() string { return "autoCollector" }

// Run keeps all results in files.
func (c *Collector) Run(ctx context.Context, request processor.Request) (processor.Result, error) {
	parts := c.OfNode
	if request.Pod != (processor.Pod{}) {
		parts = slices.Concat(c.OfPod, c.OfNode)
	}
	result := processor.Result{Files: map[string]string{}}
	for _, p := range parts {
		one, err := p.Run(ctx, request)
		if err != nil {
			return processor.Result{}, err
		}
		for key, value := range one.Values {
			result.Files[key] = value
		}
	}
	return result, nil
}
