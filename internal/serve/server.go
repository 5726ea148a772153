// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Time limits of a connection, and how many there are at once.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 30 * time.Second
	idleTimeout    = time.Minute
	stopTimeout    = 10 * time.Second
	maxHeaderBytes = 32 << 10
	maxConnections = 128
)

// Server answers HTTPS on one address. It is a manager.Runnable.
type Server struct {
	Address string
	Handler *Handler
	// CertFile and KeyFile are read again when they change. Both empty: a certificate is made at start.
	CertFile, KeyFile string
	Log               logr.Logger
	// Listening, where it is set, is told the address once there is one.
	Listening func(net.Addr)
}

// Start serves until ctx is done. Calls that run get a while to end.
func (s *Server) Start(ctx context.Context) error {
	config, err := s.tls(ctx)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listening on %q: %w", s.Address, err)
	}
	if s.Listening != nil {
		s.Listening(listener.Addr())
	}
	server := s.server(config)
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		stopped <- server.Shutdown(ending)
	}()
	err = server.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "")
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving processors: %w", err)
	}
	return <-stopped
}

func (s *Server) server(config *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           s.Handler,
		TLSConfig:         config,
		Protocols:         &protocols,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + s.Handler.timeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          nil,
	}
}

func (s *Server) tls(ctx context.Context) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CertFile == "" {
		cert, fingerprint, err := selfSigned(s.Handler.node, time.Now())
		if err != nil {
			return nil, err
		}
		s.Log.Info("Made a certificate for callers to pin", "sha256", fingerprint)
		config.Certificates = []tls.Certificate{cert}
		return config, nil
	}
	watcher, err := certwatcher.New(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading certificate %q: %w", s.CertFile, err)
	}
	go func() {
		if err := watcher.Start(ctx); err != nil {
			s.Log.Error(err, "Stopped watching the certificate", "file", s.CertFile)
		}
	}()
	config.GetCertificate = watcher.GetCertificate
	return config, nil
}
