// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var rule = Rule{Resource: &authorizationv1.ResourceAttributes{Group: "example.org", Resource: "alerts", Verb: "create"}}

// reviews answers as an API server does, and counts. A token is its user's name, and after a colon its audience.
type reviews struct {
	mu     sync.Mutex
	asked  int
	err    error
	called chan struct{} // has a value for each call; nil: no test waits for them
}

func (r *reviews) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.called != nil {
		r.called <- struct{}{}
	}
	user, audience, named := strings.Cut(review.Spec.Token, ":")
	if !named {
		audience = "https://kubernetes.default.svc"
	}
	asked := review.Spec.Audiences
	if asked == nil {
		asked = []string{"https://kubernetes.default.svc"}
	}
	review.Status.Authenticated = !strings.HasPrefix(user, "forged") && slices.Contains(asked, audience)
	if review.Status.Authenticated {
		review.Status.Audiences = []string{audience}
	}
	review.Status.User = authenticationv1.UserInfo{Username: user, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	return review, r.err
}

func (r *reviews) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *reviews) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

type access struct {
	mu   sync.Mutex
	spec authorizationv1.SubjectAccessReviewSpec
	none bool
}

func (a *access) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spec = r.Spec
	r.Status.Allowed = strings.HasPrefix(r.Spec.User, "sender") && !a.none
	return r, nil
}

func TestReviewer(t *testing.T) {
	t.Parallel()
	tokens, rights := &reviews{}, &access{}
	r := NewReviewer(tokens, rights, rule)
	for name, want := range map[string]error{"forged": ErrUnauthenticated, "another": ErrForbidden, strings.Repeat("x", 1<<20): ErrUnauthenticated} {
		if err := r.Authenticate(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("%.20s: %v", name, err)
		}
	}
	asked := tokens.count()
	for range 100 {
		if err := r.Authenticate(t.Context(), "sender"); err != nil {
			t.Fatal(err)
		}
	}
	if tokens.count() != asked+1 {
		t.Errorf("one sender was asked about %d times", tokens.count()-asked)
	}
	a := rights.spec.ResourceAttributes
	if a.Group != "example.org" || a.Resource != "alerts" || a.Verb != "create" || rights.spec.Groups[0] != "g" || rights.spec.Extra["k"][0] != "v" {
		t.Errorf("asked for %+v of %+v", a, rights.spec)
	}
	tokens.fail(errors.New("down"))
	if err := r.Authenticate(t.Context(), "new"); err == nil || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrForbidden) {
		t.Errorf("a server that fails: %v", err)
	}
}

// A token for another audience is refused, and the API server's own counts only where that is wanted.
func TestAudiences(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		audiences []string
		token     string
		want      error
	}{
		"of kubediag":            {[]string{"kubediag"}, "sender:kubediag", nil},
		"of the server, refused": {[]string{"kubediag"}, "sender", ErrUnauthenticated},
		"both, of the server":    {[]string{"kubediag", AudienceOfServer}, "sender", nil},
		"both, of kubediag":      {[]string{"kubediag", AudienceOfServer}, "sender:kubediag", nil},
		"both, of another":       {[]string{"kubediag", AudienceOfServer}, "sender:vault", ErrUnauthenticated},
		"none named":             {nil, "sender", nil},
		"none named, another":    {nil, "sender:kubediag", ErrUnauthenticated},
		"without a right":        {[]string{"kubediag"}, "other:kubediag", ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := NewReviewer(&reviews{}, &access{}, rule, tc.audiences...).Authenticate(t.Context(), tc.token)
			if !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
				t.Errorf("error = %v, want %v", err, tc.want)
			}
		})
	}
	without := &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Authenticated: true}}
	if isFor(without, []string{"kubediag"}) || !isFor(without, nil) {
		t.Error("a server that knows no audiences has answered for kubediag's")
	}
}

// noTurns is a reviewer whose turns never come: only known tokens pass.
func noTurns(tokens *reviews, rights *access, now *time.Time) *Reviewer {
	r := NewReviewer(tokens, rights, rule)
	r.now = func() time.Time { return *now }
	r.unknown.limiter = rate.NewLimiter(0, 0)
	r.unknown.giving = true
	r.remember([32]byte{}, &knownToken{text: "sender", user: "sender", passed: *now, used: *now})
	return r
}

// A known token is asked about before its minute is over, without a request and without a turn. So guesses never come between.
func TestKnownTokenIsRenewed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	tokens, rights := &reviews{}, &access{}
	r := noTurns(tokens, rights, &now)
	renew := func() {
		t.Helper()
		r.mu.Lock()
		k := r.known[[32]byte{}]
		r.mu.Unlock()
		r.renewOne(t.Context(), [32]byte{}, k)
	}
	r.renew(t.Context())
	if tokens.count() != 0 {
		t.Error("a fresh answer was asked for again")
	}
	for range 100 {
		now = now.Add(knownFor - time.Second)
		renew()
		if !r.knows([32]byte{}) {
			t.Fatal("the token has run out")
		}
	}
	tokens.fail(errors.New("down"))
	now = now.Add(knownFor - time.Second)
	renew()
	if !r.knows([32]byte{}) {
		t.Error("an API server that is away takes the right before the minute is over")
	}
	now = now.Add(time.Second)
	if r.knows([32]byte{}) {
		t.Error("an answer counts for more than a minute")
	}
	tokens.fail(nil)
	renew()
	rights.none = true
	renew()
	if r.knows([32]byte{}) || len(r.known) != 0 {
		t.Error("a sender without the right is still known")
	}
}

// Renew asks by itself, once the answer is half a minute old, and forgets the tokens of senders that are gone.
func TestRenewAsks(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	tokens := &reviews{called: make(chan struct{}, 1)}
	r := noTurns(tokens, &access{}, &now)
	now = now.Add(knownFor / 2)
	r.renew(t.Context())
	<-tokens.called
}

// A known token needs no turn, while an unknown one waits for it and is not asked about.
func TestKnownTokenNeedsNoTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	tokens := &reviews{}
	r := noTurns(tokens, &access{}, &now)
	r.remember(sha256.Sum256([]byte("sender")), &knownToken{text: "sender", user: "sender", passed: now, used: now})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Authenticate(ctx, "sender"); err != nil {
		t.Errorf("a known token: %v", err)
	}
	if err := r.Authenticate(ctx, "guess"); !errors.Is(err, context.Canceled) || tokens.count() > 0 {
		t.Errorf("a guess: %v, %d questions", err, tokens.count())
	}
}

// The token of a sender that is gone is not asked about for ever.
func TestUnusedTokenIsForgotten(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	r := noTurns(&reviews{}, &access{}, &now)
	k := r.known[[32]byte{}]
	for range 3 {
		k.passed, now = now.Add(forgetAfter/3), now.Add(forgetAfter/3)
		if len(r.known) != 1 {
			t.Fatal("it is forgotten within the day")
		}
		r.renew(t.Context())
	}
	if len(r.known) != 0 {
		t.Error("it is still known")
	}
}

// A user with many tokens takes no place of another user.
func TestUsersShareKnownTokens(t *testing.T) {
	t.Parallel()
	r := NewReviewer(&reviews{}, &access{}, rule)
	now := time.Now()
	r.remember([32]byte{1}, &knownToken{user: "small", passed: now, used: now})
	for i := range 3 * maxKnownTokens {
		r.remember([32]byte{2, byte(i), byte(i >> 8)}, &knownToken{user: "large", passed: now, used: now.Add(time.Duration(i) * time.Second)})
	}
	last := 3*maxKnownTokens - 1
	if !r.knows([32]byte{1}) || !r.knows([32]byte{2, byte(last), byte(last >> 8)}) || len(r.known) != maxKnownTokens {
		t.Errorf("%d tokens are known, small's among them: %v", len(r.known), r.knows([32]byte{1}))
	}
}

// The turn is that of an address of senders, then of one that was refused least, and among the same of who has waited longest.
func TestOrderOfTurns(t *testing.T) {
	t.Parallel()
	p := newPlaces(nil)
	at := func(n byte) *conn {
		return &conn{of: p, address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32)}
	}
	guesser, guesser2, stranger, stranger2, sender := at(1), at(2), at(3), at(4), at(5)
	sender.countRefusal()
	sender.letIn()
	for range 3 {
		guesser.countRefusal()
	}
	guesser2.countRefusal()
	r := &turns{}
	var got []*conn
	for _, c := range []*conn{guesser, stranger, guesser2, guesser, sender, stranger2} {
		r.waiting = append(r.waiting, &turn{of: c, came: make(chan struct{})})
	}
	for len(r.waiting) > 0 {
		got = append(got, r.takeNext().of)
	}
	if want := []*conn{sender, stranger, stranger2, guesser2, guesser, guesser}; !slices.Equal(got, want) {
		t.Errorf("order = %v", got)
	}
}

// Tokens that are guessed do not reach the API server faster than its limit.
func TestGuesses(t *testing.T) {
	t.Parallel()
	tokens := &reviews{called: make(chan struct{}, 1000)}
	r := NewReviewer(tokens, &access{}, rule)
	r.unknown.limiter = rate.NewLimiter(0, reviewsPerSecond)
	ctx, stop := context.WithCancel(t.Context())
	var guessers sync.WaitGroup
	for i := range 1000 {
		guessers.Go(func() { _ = r.Authenticate(ctx, fmt.Sprint("guess", i)) })
	}
	for range reviewsPerSecond { // the first ones do not wait
		<-tokens.called
	}
	stop()
	guessers.Wait()
	if tokens.count() > reviewsPerSecond {
		t.Errorf("%d guesses were asked about", tokens.count())
	}
}
