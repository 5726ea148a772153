// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package alertmanager receives alerts and offers those that a Trigger matches. It takes the webhook of Alertmanager, and the
// arrays that Prometheus sends to an Alertmanager of API v1 or v2. It listens on the leader only, and only if it has an
// address.
//
// A sender must prove its right; a body has at most 1 MiB, and a sender that is slow is cut off. A connection ends with the first
// answer that is not 200. An alert that is resolved starts nothing and ends nothing.
package alertmanager

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/bearer"
	"kubediag.org/kubediag/internal/trigger"
)

// Bounds of the server.
const (
	maxBodyBytes = 1 << 20
	readTimeout  = 15 * time.Second
	stopTimeout  = 3 * time.Second
)

// Receiver serves alerts.
type Receiver struct {
	// Address to listen at. Empty: none, and no Trigger for alerts can be used.
	Address string
	// CertFile and KeyFile are for HTTPS, and are read again when they change.
	CertFile, KeyFile string
	// Own is the certificate if there are no files. Nil: HTTP, which no program uses.
	Own *OwnCertificate
	// Auth decides who may send.
	Auth bearer.Authenticator
	// To takes the causes that Triggers match.
	To trigger.Offerer

	rules trigger.Rules[signal]
	now   func() time.Time
	slow  time.Duration // how long a request may take to come
	room  chan struct{} // how many bodies are decoded at once
}

// SenderRule is the right to create alerts.diagnosis.kubediag.org. The kind does not exist: the right is for this alone.
func SenderRule() bearer.Rule {
	return bearer.Rule{Resource: &authorizationv1.ResourceAttributes{Group: v1.Group, Resource: "alerts", Verb: "create"}}
}

// Install takes a Trigger, and forgets it if it is of another source.
func (r *Receiver) Install(t *v1.Trigger) error {
	_, err := r.rules.Install(t, compile)
	return err
}

// Remove forgets a Trigger.
func (r *Receiver) Remove(name string) { r.rules.Remove(name) }

// NeedLeaderElection has the leader alone listen.
func (r *Receiver) NeedLeaderElection() bool { return true }

// Start serves until ctx is done.
func (r *Receiver) Start(ctx context.Context) error {
	if r.Address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.Address)
	if err != nil {
		return fmt.Errorf("listening for alerts: %w", err)
	}
	return r.serve(ctx, listener)
}

// serve serves on a listener and closes it.
func (r *Receiver) serve(ctx context.Context, listener net.Listener) error {
	certificate := bearer.TLS{CertFile: r.CertFile, KeyFile: r.KeyFile}
	if r.Own != nil { // else it is HTTP without files
		certificate.Own = func(ctx context.Context) (tls.Certificate, error) {
			return r.Own.obtain(ctx, logr.FromContextOrDiscard(ctx).WithName("alerts"))
		}
	}
	listener, err := bearer.Listen(ctx, listener, certificate)
	if err != nil {
		return fmt.Errorf("listening for alerts: %w", err)
	}
	if auth, ok := r.Auth.(interface{ Renew(ctx context.Context) }); ok {
		go auth.Renew(ctx)
	}
	server := manager.Server{Name: "alerts", Server: r.server(), Listener: listener, ShutdownTimeout: new(stopTimeout)}
	if err := server.Start(ctx); err != nil {
		return fmt.Errorf("serving alerts: %w", err)
	}
	return nil
}
