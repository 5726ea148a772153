// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package bearer serves HTTP to callers who prove a right by a bearer token. A token is in a file, or the API server is asked about it.
// Strangers with many connections or guesses keep no such caller out, and cost the API server little. It knows no request beyond that.
package bearer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// ErrUnauthenticated and ErrForbidden refuse a caller. Any other error says that it could not be checked.
var (
	ErrUnauthenticated = errors.New("the token is not valid")
	ErrForbidden       = errors.New("the right is missing")
)

// Authenticator decides who may call.
type Authenticator interface {
	// Authenticate checks a bearer token.
	Authenticate(ctx context.Context, token string) error
}

// Bounds of a secret.
const (
	minSecretBytes = 16
	maxSecretBytes = 4096
)

// SecretFile takes one token, which is in a file. The file is read at each request, so that a new secret counts at once.
type SecretFile string

// Authenticate compares the token with the file.
func (path SecretFile) Authenticate(_ context.Context, token string) error {
	secret, err := path.Read()
	if err != nil {
		return err
	}
	want, got := sha256.Sum256(secret), sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		return ErrUnauthenticated
	}
	return nil
}

// Read reads the secret, without the white space around it. A text that is too short to be a secret is an error.
func (path SecretFile) Read() ([]byte, error) {
	file, err := os.Open(string(path))
	if err != nil {
		return nil, fmt.Errorf("reading secret: %w", err)
	}
	defer file.Close()
	secret, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading secret: %w", err)
	}
	secret = bytes.TrimSpace(secret)
	if len(secret) < minSecretBytes || len(secret) > maxSecretBytes {
		return nil, fmt.Errorf("secret has %d bytes: %d to %d are allowed", len(secret), minSecretBytes, maxSecretBytes)
	}
	return secret, nil
}

// Check refuses a request whose bearer token does not pass, with a status and a message. The status is 0 if it passes. The caller is
// remembered in both cases, if a server of this package has the connection.
func Check(auth Authenticator, request *http.Request) (code int, message string) {
	scheme, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, "a bearer token is missing"
	}
	of := connOf(request.Context())
	err := auth.Authenticate(request.Context(), strings.TrimSpace(token))
	switch {
	case err == nil:
		of.letIn()
		return 0, ""
	case errors.Is(err, ErrUnauthenticated):
		of.countRefusal()
		return http.StatusUnauthorized, err.Error()
	case errors.Is(err, ErrForbidden):
		of.countRefusal()
		return http.StatusForbidden, err.Error()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable, "the sender could not be checked in time"
	}
	return http.StatusServiceUnavailable, "the sender could not be checked"
}
