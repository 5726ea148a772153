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
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

// ErrUnauthenticated and ErrForbidden refuse a sender. Any other error says that it could not be checked.
var (
	ErrUnauthenticated = errors.New("the token is not valid")
	ErrForbidden       = errors.New("this takes the right to create alerts." + v1.Group)
)

// Authenticator decides who may send alerts.
type Authenticator interface {
	// Authenticate checks a bearer token.
	Authenticate(ctx context.Context, token string) error
}

// Bounds of secrets, and of what is asked of the API server about tokens.
const (
	minSecretBytes    = 16
	maxSecretBytes    = 4096
	maxTokenBytes     = 8192
	reviewTimeout     = 5 * time.Second
	reviewsPerSecond  = 5
	reviewsAtOnce     = 10
	rememberFor       = time.Minute
	maxRememberTokens = 64
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

// Read reads the secret, without the white space around it. One that is too short to be a secret is an error.
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

// TokenReviews and AccessReviews ask the API server.
type (
	// TokenReviews asks whose a token is.
	TokenReviews interface {
		Create(ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions) (*authenticationv1.TokenReview, error)
	}
	// AccessReviews asks what a user may do.
	AccessReviews interface {
		Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
	}
)

// Reviewer takes the tokens of users who may create alerts.diagnosis.kubediag.org. The kind does not exist: the right is for
// this alone. A token that passed is not asked about again for a minute.
type Reviewer struct {
	tokens  TokenReviews
	access  AccessReviews
	limiter *rate.Limiter

	mu     sync.Mutex
	passed map[[sha256.Size]byte]time.Time
}

// NewReviewer makes a Reviewer.
func NewReviewer(tokens TokenReviews, access AccessReviews) *Reviewer {
	return &Reviewer{
		tokens: tokens, access: access, limiter: rate.NewLimiter(reviewsPerSecond, reviewsAtOnce),
		passed: map[[sha256.Size]byte]time.Time{},
	}
}

// Authenticate asks the API server whose the token is and whether that user may send alerts.
func (r *Reviewer) Authenticate(ctx context.Context, token string) error {
	if len(token) > maxTokenBytes {
		return ErrUnauthenticated
	}
	digest := sha256.Sum256([]byte(token))
	if r.remembers(digest) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	if err := r.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("waiting for the turn: %w", err)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := r.tokens.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("reviewing token: %w", err)
	}
	if !review.Status.Authenticated {
		return ErrUnauthenticated
	}
	if err := r.authorize(ctx, review.Status.User); err != nil {
		return err
	}
	r.remember(digest)
	return nil
}

func (r *Reviewer) authorize(ctx context.Context, user authenticationv1.UserInfo) error {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1.Group, Resource: "alerts", Verb: "create"},
	}}
	review, err := r.access.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("reviewing access: %w", err)
	}
	if !review.Status.Allowed {
		return ErrForbidden
	}
	return nil
}

func (r *Reviewer) remembers(digest [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.passed[digest]
	return ok && time.Now().Before(until)
}

func (r *Reviewer) remember(digest [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for other, until := range r.passed {
		if now.After(until) {
			delete(r.passed, other)
		}
	}
	if len(r.passed) < maxRememberTokens {
		r.passed[digest] = now.Add(rememberFor)
	}
}
