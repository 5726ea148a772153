// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of the facts that are taken over from a signal, in bytes.
const (
	maxExcerptBytes   = 4096
	maxExcerptValue   = 256
	maxMessageBytes   = 512
	maxParameterBytes = 4096
	maxParametersSize = 16 << 10
)

// Kind is the kind of a signal, as metrics name it.
type Kind string

// Kinds of signals.
const (
	KindEvent      Kind = "event"
	KindAlert      Kind = "alert"
	KindCron       Kind = "cron"
	KindMountFault Kind = "mountfault"
)

// Cause is a signal that a Trigger has matched.
type Cause struct {
	Kind Kind
	// Key names the cause among all of its kind: signals of one cause have one key.
	Key string
	// Time of the signal. It decides the slot of time that is part of the name of the Diagnosis.
	Time time.Time
	// Scheduled is the time of a schedule. Each is a cause of its own, which no repeat interval holds back. Zero: no schedule.
	Scheduled time.Time
	// Policy is for a node where an earlier Diagnosis of the Trigger has not ended. Empty: ForbidConcurrent.
	Policy v1.ConcurrencyPolicy
	// Pod that the signal is about. Nil: none.
	Pod *v1.PodReference
	// PodUID is that of the pod, if the signal says it.
	PodUID types.UID
	// Node that the signal names. Empty: none, or that of the pod.
	Node string
	// Parameters that come from the signal.
	Parameters map[string]string
	// Annotations of the Diagnosis.
	Annotations map[string]string
}

// owner is on whose account the cause waits: the pod that it is about, or the cluster itself.
func (c *Cause) owner() share.Owner {
	if c.Pod == nil {
		return share.Owner{}
	}
	return share.Owner{Namespace: c.Pod.Namespace, Pod: c.Pod.Name}
}

// slot is the number of the repeat interval in which the cause falls, counted from 1970.
func (c *Cause) slot(interval time.Duration) int64 {
	if !c.Scheduled.IsZero() {
		return c.Scheduled.Unix()
	}
	return c.Time.Unix() / max(int64(interval/time.Second), 1)
}

// Rejection says why no Diagnosis is made of a signal that matched.
type Rejection struct {
	// Reason is one of those that package v1 lists.
	Reason  string
	Message string

	passes bool // whether it may soon be otherwise, so that another attempt is worth while
}

// Error returns reason and message.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Reject returns a Rejection with a message of one line, 512 bytes at most.
func Reject(reason, format string, args ...any) *Rejection {
	return &Rejection{Reason: reason, Message: printable.Clip(printable.Line(fmt.Sprintf(format, args...)), maxMessageBytes)}
}

// Check refuses a cause whose target no object can have, or whose parameters are too long.
func (c *Cause) Check() error {
	if c.Node != "" && len(validation.IsDNS1123Subdomain(c.Node)) > 0 {
		return Reject(v1.ReasonInvalidTarget, "%q cannot be the name of a node", printable.Clip(c.Node, maxExcerptValue))
	}
	if p := c.Pod; p != nil {
		switch {
		case len(validation.IsDNS1123Label(p.Namespace)) > 0:
			return Reject(v1.ReasonInvalidTarget, "%q cannot be the namespace of a pod", printable.Clip(p.Namespace, maxExcerptValue))
		case len(validation.IsDNS1123Subdomain(p.Name)) > 0:
			return Reject(v1.ReasonInvalidTarget, "%q cannot be the name of a pod", printable.Clip(p.Name, maxExcerptValue))
		case p.Container != "" && len(validation.IsDNS1123Label(p.Container)) > 0:
			return Reject(v1.ReasonInvalidTarget, "%q cannot be the name of a container", printable.Clip(p.Container, maxExcerptValue))
		}
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(c.Parameters)) {
		value := c.Parameters[key]
		size += len(key) + len(value)
		if len(value) > maxParameterBytes || size > maxParametersSize {
			return Reject(v1.ReasonInvalidParameter, "the value of %s has %d bytes: one may have %d, all together %d",
				key, len(value), maxParameterBytes, maxParametersSize)
		}
	}
	return nil
}

// diagnosisName is the same for the same cause: the name of the Trigger, for people, and a digest.
func diagnosisName(t *v1.Trigger, c *Cause, slot int64, node string) string {
	h := sha256.New()
	for _, part := range []string{string(t.UID), string(c.Kind), c.Key, fmt.Sprint(slot), node} {
		fmt.Fprintf(h, "%d %s ", len(part), part)
	}
	name := strings.ReplaceAll(t.Name, ".", "-")
	return strings.Trim(name[:min(len(name), 40)], "-") + "-" + hex.EncodeToString(h.Sum(nil)[:10])
}

// Excerpt returns a JSON object of a signal: the fields in order, each cut to 256 bytes, as far as 4096 bytes reach.
func Excerpt(fields map[string]string) string {
	kept, size := map[string]string{}, 2
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		name, value := printable.Clip(printable.Line(key), maxExcerptValue), printable.Clip(printable.Line(fields[key]), maxExcerptValue)
		if value == "" {
			continue
		}
		text, err := json.Marshal(map[string]string{name: value})
		if err != nil || size+len(text) > maxExcerptBytes {
			continue
		}
		kept[name] = value
		size += len(text)
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return "{}"
	}
	return string(text)
}
