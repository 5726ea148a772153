// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"context"
	"maps"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// ParamPrefix begins the keys of parameters. Only the requester of the run sets them.
const ParamPrefix = "param."

// Context keys that every processor sees in Request.Data. They overrule parameters of the same names, and no result has
// such a name.
const (
	KeyDiagnosisUID       = "diagnosis.uid"
	KeyDiagnosisNamespace = "diagnosis.namespace"
	KeyDiagnosisName      = "diagnosis.name"
	KeyPodNamespace       = "pod.namespace"
	KeyPodName            = "pod.name"
	KeyContainer          = "container"
	KeyNode               = "node"
)

// Processor looks at the node and returns its findings. Run is safe to call again and from several goroutines.
type Processor interface {
	// Name is the last part of the path /processor/<name>, such as mountInfoCollector.
	Name() string
	// Run returns results, a clean negative (Result.NotApplicable) or an error. It gives up when ctx is done.
	Run(ctx context.Context, r Request) (Result, error)
}

// Request is a question to a processor.
type Request struct {
	Diagnosis Diagnosis
	// Node is the name of the node that the processor runs on.
	Node string
	// Pod is the pod in question; its Name is empty if there is none.
	Pod Pod
	// Values holds the parameters of the Diagnosis overlaid by the results of earlier operations, none of which has a key
	// that is Reserved. It comes from outside and never chooses a target.
	Values map[string]string
}

// Diagnosis names the Diagnosis on whose behalf a processor runs.
type Diagnosis struct {
	UID, Namespace, Name string
}

// Pod names a pod and, if it matters, one of its containers.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Container string `json:"container,omitempty"`
}

// Data is the request as KubeDiag's contract over HTTP has it: Values overlaid by the context keys that are not empty.
func (r Request) Data() map[string]string {
	data := maps.Clone(r.Values)
	if data == nil {
		data = map[string]string{}
	}
	for key, value := range r.context() {
		delete(data, key)
		if value != "" {
			data[key] = value
		}
	}
	return data
}

// context are the values of all context keys.
func (r Request) context() map[string]string {
	return map[string]string{
		KeyDiagnosisUID:       r.Diagnosis.UID,
		KeyDiagnosisNamespace: r.Diagnosis.Namespace,
		KeyDiagnosisName:      r.Diagnosis.Name,
		KeyPodNamespace:       r.Pod.Namespace,
		KeyPodName:            r.Pod.Name,
		KeyContainer:          r.Pod.Container,
		KeyNode:               r.Node,
	}
}

// Reserved reports whether a key is a parameter's or a context key, which no result may set.
func Reserved(key string) bool {
	_, ok := Request{}.context()[key]
	return ok || strings.HasPrefix(key, ParamPrefix)
}

// Result is the answer of a processor.
type Result struct {
	// Values are the results by key: class.domain.subject.field, dots between members, underscores between words.
	Values map[string]string
	// Findings are the faults that were found, or healed.
	Findings []fault.Finding
	// NotApplicable, if it is not empty, says why this is not the fault that the processor looks for. It is an answer,
	// not an error: it is not tried again.
	NotApplicable string
	// Unjudged names, in sentences, the parts of the question that could not be judged, and why. Then a result without findings is
	// no clean negative: the operation fails with the reason NotJudged.
	Unjudged []string
	// Over and LeftOver are those of mountstate.Survey: the UIDs of pods that are proven to want nothing, and the points of mounts of the node that are
	// proven to be of no pod. Such mounts are judged.
	Over, LeftOver []string
	// Files are results by key that are too long for people: they are kept on the node, and later operations get them like
	// Values.
	Files map[string]string
	// Gone are the faults that a recoverer has looked for and that are not there any more.
	Gone []fault.Absence
	// NoFault is set if the processor has looked for every fault that could be there and has found none.
	NoFault bool
	// Message says the outcome and the next step for people. It may be empty.
	Message string
	// Wait is for the part of others in a repair; nil if they have none. Findings are those of a driver that does not wait.
	Wait *Wait
}
