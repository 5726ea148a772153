// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package scrape serves the metrics of a program: in the clear to all, or by HTTPS to those whom the API server gives the right to get
// the path /metrics. It declares no metric.
//
// controller-runtime has a filter for the same. It asks the API server about each new token without a bound, so that guesses from the
// network of pods would cost every agent its calls. It also brings the libraries of API servers into the agent.
package scrape

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	authorizationapi "k8s.io/api/authorization/v1"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"kubediag.org/kubediag/internal/bearer"
	"kubediag.org/kubediag/internal/flags"
)

const (
	path        = "/metrics"
	readTimeout = 10 * time.Second
	stopTimeout = 3 * time.Second
	// knownFor is how long an answer about a token counts: a thousand agents ask about the token of one Prometheus seven times a second.
	knownFor = 5 * time.Minute
	// unknownPerSecond is how many guesses each program asks the API server about.
	unknownPerSecond = 1
)

// Protection says who may read the metrics. The zero value: all who can reach them.
type Protection struct {
	// On asks for a bearer token, and serves by HTTPS.
	On bool
	// CertFile and KeyFile are the certificate. Empty: one is made at each start.
	CertFile, KeyFile string
}

// AddFlags adds the flags.
func (p *Protection) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&p.On, "metrics-protected", p.On, "serve metrics by HTTPS to those who have the right to get the path /metrics; the API server is asked about their tokens")
	flags.StringVar(&p.CertFile, "metrics-tls-cert-file", p.CertFile, "certificate with which protected metrics are served; without it the program makes one")
	flags.StringVar(&p.KeyFile, "metrics-tls-key-file", p.KeyFile, "key of that certificate")
}

// Validate checks the settings.
func (p *Protection) Validate() error {
	var errs []error
	if (p.CertFile == "") != (p.KeyFile == "") {
		errs = append(errs, flags.Invalid("metrics-tls-cert-file", p.CertFile, "must be set together with --metrics-tls-key-file"))
	}
	if p.CertFile != "" && !p.On {
		errs = append(errs, flags.Invalid("metrics-tls-cert-file", p.CertFile, "needs --metrics-protected"))
	}
	return errors.Join(errs...)
}

// Plain is the part of controller-runtime: it serves nothing if metrics are protected.
func (p *Protection) Plain(address string) server.Options {
	if p.On {
		address = flags.Off
	}
	return server.Options{BindAddress: address}
}

// Add has a manager serve protected metrics at an address. Without protection it does nothing.
func (p *Protection) Add(m manager.Manager, address string) error {
	if !p.On || address == flags.Off {
		return nil
	}
	config := rest.CopyConfig(m.GetConfig())
	config.QPS, config.Burst, config.RateLimiter = 0, 0, nil // clients of their own: no request of the program waits for a review
	tokens, err := authenticationv1.NewForConfigAndClient(config, m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making client of token reviews: %w", err)
	}
	access, err := authorizationv1.NewForConfigAndClient(config, m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making client of access reviews: %w", err)
	}
	rule := bearer.Rule{Path: &authorizationapi.NonResourceAttributes{Path: path, Verb: "get"}, KnownFor: knownFor, PerSecond: unknownPerSecond}
	return m.Add(&protected{Protection: *p, address: address, auth: bearer.NewReviewer(tokens.TokenReviews(), access.SubjectAccessReviews(), rule)})
}

// protected serves metrics by HTTPS.
type protected struct {
	Protection

	address string
	auth    *bearer.Reviewer
}

// NeedLeaderElection reports that every replica serves its metrics.
func (*protected) NeedLeaderElection() bool { return false }

// Start serves until ctx is done.
func (p *protected) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("listening for scrapes: %w", err)
	}
	listener, err = bearer.Listen(ctx, listener, bearer.TLS{CertFile: p.CertFile, KeyFile: p.KeyFile, Own: ownCertificate})
	if err != nil {
		return fmt.Errorf("listening for scrapes: %w", err)
	}
	go p.auth.Renew(ctx)
	all := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	mux := http.NewServeMux() // there is no other path, and that one is for those who have the right
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, request *http.Request) {
		code, message := bearer.Check(p.auth, request)
		if code == 0 {
			all.ServeHTTP(w, request)
			return
		}
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, message, code)
	})
	s := manager.Server{Name: "metrics", Server: bearer.NewServer(mux, readTimeout), Listener: listener, ShutdownTimeout: new(stopTimeout)}
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}

func ownCertificate(context.Context) (tls.Certificate, error) {
	certificate, key, err := bearer.SelfSigned("kubediag-metrics", "kubediag-metrics")
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}
