// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"kubediag.org/kubediag/internal/bearer"
	controller "kubediag.org/kubediag/internal/controller/trigger"
	"kubediag.org/kubediag/internal/flags"
	"kubediag.org/kubediag/internal/trigger"
	"kubediag.org/kubediag/internal/trigger/alertmanager"
	eventsource "kubediag.org/kubediag/internal/trigger/event"
	"kubediag.org/kubediag/internal/trigger/mountfault"
)

// triggerInterval is the time between two reconciliations of a Trigger, which write its status if it has changed.
const triggerInterval = 5 * time.Second

// addTriggers adds the parts that fire Triggers: the sources, the dispatcher that makes the Diagnoses, and the reconciler that
// keeps them at work. alerts gets the dispatcher.
func addTriggers(m manager.Manager, settings options, alerts *alertmanager.Receiver) error {
	dispatcher := &trigger.Dispatcher{Client: m.GetClient(), Reader: m.GetAPIReader(), Namespace: settings.Namespace}
	var real clock.RealClock
	config := rest.CopyConfig(m.GetConfig())
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	core, err := corev1.NewForConfigAndClient(config, m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making client of events: %w", err)
	}
	events := eventsource.New(core.Events(""), dispatcher, real)
	alerts.To = dispatcher
	faults := mountfault.New(m.GetClient(), m.GetAPIReader(), dispatcher, real)
	r := &controller.Reconciler{
		Client: m.GetClient(), Clock: real, Namespace: settings.Namespace, Dispatcher: dispatcher,
		Sources: []trigger.Source{events, alerts, faults}, AlertsReceived: alerts.Address != "", Every: settings.TriggerInterval,
	}
	return errors.Join(dispatcher.SetupWithManager(m), m.Add(events), m.Add(alerts), faults.SetupWithManager(m), r.SetupWithManager(m))
}

// newReceiver makes the receiver of alerts. Without a secret of its own, it asks the API server about senders, for
// which the manager needs rights that config/components/alert-receiver gives.
func newReceiver(m manager.Manager, o options) (*alertmanager.Receiver, error) {
	core, err := corev1.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making client of Secrets: %w", err)
	}
	own := &alertmanager.OwnCertificate{Secrets: core.Secrets(o.Namespace), Namespace: o.Namespace}
	r := &alertmanager.Receiver{CertFile: o.AlertCertFile, KeyFile: o.AlertKeyFile, Own: own}
	if o.AlertBindAddress != flags.Off {
		r.Address = o.AlertBindAddress
	}
	if o.AlertSecretFile != "" {
		secret := bearer.SecretFile(o.AlertSecretFile)
		if _, err := secret.Read(); err != nil {
			return nil, err
		}
		r.Auth = secret
		return r, nil
	}
	tokens, err := authenticationv1.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making client of token reviews: %w", err)
	}
	access, err := authorizationv1.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making client of access reviews: %w", err)
	}
	r.Auth = bearer.NewReviewer(tokens.TokenReviews(), access.SubjectAccessReviews(), alertmanager.SenderRule(), o.AlertAudiences...)
	return r, nil
}
