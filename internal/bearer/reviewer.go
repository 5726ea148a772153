// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of the questions to the API server about tokens.
const (
	maxTokenBytes    = 8192
	turnTimeout      = 10 * time.Second
	reviewTimeout    = 5 * time.Second
	reviewsPerSecond = 20
	// knownFor is how long the last answer about a token counts, if the rule does not say. It is asked for again when half of that is over.
	knownFor = time.Minute
	// forgetAfter is how long a token without any request is asked about.
	forgetAfter = 24 * time.Hour
	// renewEvery is the time between two looks at the known tokens.
	renewEvery = 5 * time.Second
	// maxKnownTokens is how many tokens are known. Users share it: the user with the most tokens loses the least recently used of
	// them. It is no share.Memory, which forgets all of an owner: a token in use must stay.
	maxKnownTokens = 64
)

// AudienceOfServer stands for the audiences that the API server has if none is named.
const AudienceOfServer = "api-server"

// TokenReviews and AccessReviews ask the API server.
type (
	// TokenReviews asks whose a token is.
	TokenReviews interface {
		Create(ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions) (*authenticationv1.TokenReview, error)
	}
	// AccessReviews asks for the rights of a user.
	AccessReviews interface {
		Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
	}
)

// Rule says which right is asked for, on a kind of the API or on a path, and how often.
type Rule struct {
	Resource *authorizationv1.ResourceAttributes
	Path     *authorizationv1.NonResourceAttributes
	// KnownFor is how long the answer about a token counts. 0: a minute.
	KnownFor time.Duration
	// PerSecond is how many unknown tokens are asked about in a second. 0: 20.
	PerSecond int
}

// String says the right as an error has it.
func (r Rule) String() string {
	if r.Path != nil {
		return r.Path.Verb + " " + r.Path.Path
	}
	return r.Resource.Verb + " " + r.Resource.Resource + "." + r.Resource.Group
}

// Reviewer takes the tokens of users who have a right. A token that passed is known from then on: it waits for no turn. Renew asks about
// it again before the answer is too old.
type Reviewer struct {
	rule      Rule
	tokens    TokenReviews
	access    AccessReviews
	audiences []string // but that of the API server
	server    bool     // the API server's audience counts, too
	unknown   *turns
	now       func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]*knownToken
}

// knownToken is a token that passed.
type knownToken struct {
	text, user   string
	passed, used time.Time
	renewing     bool
}

// NewReviewer makes a Reviewer that takes tokens for any of the audiences. Without one, only the API server's counts.
func NewReviewer(tokens TokenReviews, access AccessReviews, rule Rule, audiences ...string) *Reviewer {
	named := slices.DeleteFunc(slices.Clone(audiences), func(a string) bool { return a == AudienceOfServer })
	rule.KnownFor, rule.PerSecond = cmp.Or(rule.KnownFor, knownFor), cmp.Or(rule.PerSecond, reviewsPerSecond)
	return &Reviewer{
		rule: rule, tokens: tokens, access: access, audiences: named, server: len(named) == 0 || len(named) < len(audiences),
		unknown: &turns{limiter: rate.NewLimiter(rate.Limit(rule.PerSecond), rule.PerSecond)},
		now:     time.Now, known: map[[sha256.Size]byte]*knownToken{},
	}
}

// Authenticate asks the API server whose the token is and whether that user has the right.
func (r *Reviewer) Authenticate(ctx context.Context, token string) error {
	if len(token) > maxTokenBytes {
		return ErrUnauthenticated
	}
	digest := sha256.Sum256([]byte(token))
	if r.knows(digest) {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	if err := r.unknown.awaitTurn(waiting, connOf(ctx)); err != nil {
		return err
	}
	user, err := r.review(ctx, token)
	if err != nil {
		return err
	}
	now := r.now()
	r.remember(digest, &knownToken{text: token, user: user, passed: now, used: now})
	return nil
}

// review asks about a token and its user, and returns the user's name.
func (r *Reviewer) review(ctx context.Context, token string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	asked := [][]string{}
	if len(r.audiences) > 0 {
		asked = append(asked, r.audiences)
	}
	if r.server {
		asked = append(asked, nil)
	}
	for _, audiences := range asked {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
		review, err := r.tokens.Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("reviewing token: %w", err)
		}
		if !isFor(review, audiences) {
			continue
		}
		user, extra := review.Status.User, map[string]authorizationv1.ExtraValue{}
		for key, values := range user.Extra {
			extra[key] = authorizationv1.ExtraValue(values)
		}
		access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			ResourceAttributes: r.rule.Resource, NonResourceAttributes: r.rule.Path,
		}}
		access, err = r.access.Create(ctx, access, metav1.CreateOptions{})
		switch {
		case err != nil:
			err = fmt.Errorf("reviewing access: %w", err)
		case !access.Status.Allowed:
			err = fmt.Errorf("%w: %s", ErrForbidden, r.rule)
		}
		return user.Username, err
	}
	return "", ErrUnauthenticated
}

// isFor reports whether a review found a user, and the token is for one of the audiences. A server that knows no audiences names none:
// its answer holds for its own alone.
func isFor(review *authenticationv1.TokenReview, audiences []string) bool {
	named := func(a string) bool { return slices.Contains(audiences, a) }
	return review.Status.Authenticated && (audiences == nil || slices.ContainsFunc(review.Status.Audiences, named))
}

// knows reports whether a token has passed lately, and remembers that it was used.
func (r *Reviewer) knows(digest [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, now := r.known[digest], r.now()
	if k == nil || now.Sub(k.passed) >= r.rule.KnownFor {
		return false
	}
	k.used = now
	return true
}

func (r *Reviewer) remember(digest [sha256.Size]byte, token *knownToken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[digest] = token
	if len(r.known) <= maxKnownTokens {
		return
	}
	count := map[string]int{}
	for _, k := range r.known {
		count[k.user]++
	}
	delete(r.known, slices.MinFunc(slices.Collect(maps.Keys(r.known)), func(a, b [sha256.Size]byte) int {
		x, y := r.known[a], r.known[b]
		return cmp.Or(count[y.user]-count[x.user], x.used.Compare(y.used))
	}))
}

// Renew asks again about known tokens until ctx is done. A token that is refused, or had no request for a day, is forgotten. One that cannot be
// asked about is forgotten when its answer is too old.
func (r *Reviewer) Renew(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.renew(ctx)
		}
	}
}

// renew asks about the tokens whose turn it is, all at once, and waits for none of the answers.
func (r *Reviewer) renew(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for digest, k := range r.known {
		switch age := now.Sub(k.passed); {
		case age >= r.rule.KnownFor, now.Sub(k.used) >= forgetAfter:
			delete(r.known, digest)
		case age >= r.rule.KnownFor/2 && !k.renewing:
			k.renewing = true
			go r.renewOne(ctx, digest, k)
		}
	}
}

func (r *Reviewer) renewOne(ctx context.Context, digest [sha256.Size]byte, k *knownToken) {
	began := r.now()
	_, err := r.review(ctx, k.text)
	r.mu.Lock()
	defer r.mu.Unlock()
	k.renewing = false
	switch {
	case err == nil:
		k.passed = began
	case errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrForbidden):
		if r.known[digest] == k {
			delete(r.known, digest)
		}
	}
}
