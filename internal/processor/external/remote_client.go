// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// Time limits of the parts of one call. The whole is bounded by the operation's own.
const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 5 * time.Second
	idleTimeout      = 30 * time.Second
)

// NewClient makes the client for all calls. Servers must have a certificate of an authority that the system trusts, or
// of one in the PEM file caFile, if that is not empty.
func NewClient(caFile string) (*http.Client, error) {
	var roots *x509.CertPool // nil: the system's authorities alone
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read certificates of authorities: %w", err)
		}
		if roots, err = x509.SystemCertPool(); err != nil {
			roots = x509.NewCertPool() // an image without a system's authorities
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read certificates of authorities from %q: %w", caFile, errors.New("no certificate in PEM form"))
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // a processor is where the Operation says, and nowhere else
			DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: idleTimeout}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			TLSHandshakeTimeout:    handshakeTimeout,
			IdleConnTimeout:        idleTimeout,
			MaxIdleConns:           16,
			MaxIdleConnsPerHost:    2,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
