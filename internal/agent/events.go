// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"kubediag.org/kubediag/internal/kubeclient"
)

// eventBurst is how many Events about one object are sent without delay. The client's own 25 would swallow the last
// word on a Diagnosis with many operations.
const eventBurst = 200

// newRecorder makes the recorder of Events of core/v1, the only ones that API servers of 1.18 know. The caller shuts the
// broadcaster down.
func newRecorder(m manager.Manager, node string) (record.EventRecorder, record.EventBroadcaster, error) {
	client, err := corev1client.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, nil, fmt.Errorf("making client for Events: %w", err)
	}
	broadcaster := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: eventBurst, MessageFunc: combinedMessage})
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.Events("")})
	return broadcaster.NewRecorder(m.GetScheme(), corev1.EventSource{Component: "kubediag-agent", Host: node}), broadcaster, nil
}

// combinedMessage is the message of many Events that differ in nothing but their messages.
func combinedMessage(e *corev1.Event) string {
	return kubeclient.EventMessage("(combined from similar Events) "+e.Message, "")
}
