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
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

// Bounds of the server.
const (
	maxBodyBytes   = 1 << 20
	maxHeaderBytes = 16 << 10
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
	stopTimeout    = 3 * time.Second
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
	Auth Authenticator
	// To takes the causes that Triggers match.
	To trigger.Offerer

	rules trigger.Rules[signal]
	now   func() time.Time
	slow  time.Duration // how long a request may take to come
	room  chan struct{} // how many bodies are decoded at once
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
	listener, err := r.secure(ctx, newPlaces(listener))
	if err != nil {
		return err
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

// secure has a listener talk TLS. It closes it if it returns an error.
func (r *Receiver) secure(ctx context.Context, listener net.Listener) (net.Listener, error) {
	log := logr.FromContextOrDiscard(ctx).WithName("alerts")
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case r.CertFile != "":
		watcher, err := certwatcher.New(r.CertFile, r.KeyFile)
		if err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("reading certificate of the alert receiver: %w", err)
		}
		go func() {
			if err := watcher.Start(ctx); err != nil {
				log.Error(err, "Could not watch the certificate of the alert receiver")
			}
		}()
		config.GetCertificate = watcher.GetCertificate
	case r.Own != nil:
		certificate, err := r.Own.obtain(ctx, log)
		if err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("making certificate of the alert receiver: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	default:
		return listener, nil
	}
	return tls.NewListener(listener, config), nil
}

func (r *Receiver) server() *http.Server {
	if r.now == nil {
		r.now = time.Now
	}
	if r.slow == 0 {
		r.slow = readTimeout
	}
	if r.room == nil {
		r.room = make(chan struct{}, maxDecoding)
	}
	return &http.Server{
		Handler: r.handler(), ReadHeaderTimeout: min(headerTimeout, r.slow), ReadTimeout: r.slow, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnContext: attach,
		DisableGeneralOptionsHandler: true, // it answers "OPTIONS *" with 200, and the connection stays
	}
}
