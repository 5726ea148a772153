// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "kubediag.org/kubediag/api/v1"
)

// errUnauthenticated and errForbidden refuse a sender. Any other error says that it could not be checked.
var (
	errUnauthenticated = errors.New("the token is not valid")
	errForbidden       = errors.New("this takes the right to create alerts." + v1.Group)
)

// Authenticator decides who may send alerts.
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
		return errUnauthenticated
	}
	return nil
}

// Read reads the secret, without the white space around it. A text that is too short to be a secret is an error.
func (path SecretFile) Read() ([]byte, error) {
	file, err := os.Open(string(path))
	if err != nil {
		return nil, fmt.Errorf("reading secret of alerts: %w", err)
	}
	defer file.Close()
	secret, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading secret of alerts: %w", err)
	}
	secret = bytes.TrimSpace(secret)
	if len(secret) < minSecretBytes || len(secret) > maxSecretBytes {
		return nil, fmt.Errorf("secret of alerts has %d bytes: %d to %d are allowed", len(secret), minSecretBytes, maxSecretBytes)
	}
	return secret, nil
}
