// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubeclient"
)

// eventBurst is how many Events about one object are sent without delay. The client's own 25 would swallow the last
// word on a Diagnosis with many operations.
const eventBurst = 200

// combinedMessage is the message of many Events that differ in nothing but their messages.
func combinedMessage(e *corev1.Event) string {
	return kubeclient.EventMessage("(combined from similar Events) "+e.Message, "")
}
