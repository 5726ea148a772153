// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Bounds of a server.
const (
	maxHeaderBytes = 16 << 10
	headerTimeout  = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
)

// NewServer makes a server for a listener of Listen. A connection ends with the first answer that is not 200. slow is how long a request
// may take to come.
func NewServer(handler http.Handler, slow time.Duration) *http.Server {
	serving := http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		of := connOf(request.Context())
		of.setServing(true)
		defer of.setServing(false)
		handler.ServeHTTP(closing{w}, request)
	})
	return &http.Server{
		Handler: serving, ReadHeaderTimeout: min(headerTimeout, slow), ReadTimeout: slow, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnContext: attach,
		DisableGeneralOptionsHandler: true,                       // it answers "OPTIONS *" with 200, and the connection stays
		ErrorLog:                     log.New(io.Discard, "", 0), // strangers fill no log with handshakes that fail
	}
}

// closing ends the connection with each answer that is not 200, so that only those who have a right keep theirs.
type closing struct{ http.ResponseWriter }

// WriteHeader begins the answer.
func (c closing) WriteHeader(code int) {
	if code != http.StatusOK {
		c.Header().Set("Connection", "close")
	}
	c.ResponseWriter.WriteHeader(code)
}

// TLS is the certificate of a server: files, which are read again when they change, or Own, or none, which is HTTP.
type TLS struct {
	CertFile, KeyFile string
	Own               func(ctx context.Context) (tls.Certificate, error)
}

// Listen gives each connection of a listener a place, and has it talk TLS. It closes the listener if it returns an error.
func Listen(ctx context.Context, listener net.Listener, with TLS) (net.Listener, error) {
	shared := newPlaces(listener)
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case with.CertFile != "":
		watcher, err := certwatcher.New(with.CertFile, with.KeyFile)
		if err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("reading certificate: %w", err)
		}
		go func() {
			if err := watcher.Start(ctx); err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "Could not watch the certificate", "file", with.CertFile)
			}
		}()
		config.GetCertificate = watcher.GetCertificate
	case with.Own != nil:
		certificate, err := with.Own(ctx)
		if err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("making certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	default:
		return shared, nil
	}
	return tls.NewListener(shared, config), nil
}
