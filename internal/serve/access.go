// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// maxTokenBytes bounds the token that is sent to the API server.
const maxTokenBytes = 16 << 10

// Access asks the API server who a caller is and what the caller may do. Nothing is remembered: a right that is taken
// away is gone with the next call.
type Access struct {
	audience string
	tokens   authenticationclient.TokenReviewInterface
	reviews  authorizationclient.SubjectAccessReviewInterface
}

// NewAccess makes an Access with a connection and a rate limit of its own: callers, known or not, cannot use up the
// requests that the agent needs for its work.
//
// A token must be for the agent of this node: one that is good for the API server, or for another node, is nobody's here.
func NewAccess(config *rest.Config, node string) (*Access, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 10, 20
	tokens, err := authenticationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making client for TokenReviews: %w", err)
	}
	reviews, err := authorizationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making client for SubjectAccessReviews: %w", err)
	}
	return &Access{audience: Audience(node), tokens: tokens.TokenReviews(), reviews: reviews.SubjectAccessReviews()}, nil
}

// Audience is that of the tokens for the agent of a node.
func Audience(node string) string { return "kubediag-agent." + node }

// User finds out whose token a request carries; nil where it is nobody's.
func (a *Access) User(ctx context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenBytes {
		return nil, nil
	}
	review, err := a.tokens.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{a.audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("reviewing token: %w", err)
	}
	if !review.Status.Authenticated || review.Status.Error != "" || !slices.Contains(review.Status.Audiences, a.audience) {
		return nil, nil
	}
	return &review.Status.User, nil
}

// Allowed tells whether a user may do what the spec says; the user's names are filled in here.
func (a *Access) Allowed(ctx context.Context, u *authenticationv1.UserInfo, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	spec.User, spec.UID, spec.Groups = u.Username, u.UID, u.Groups
	spec.Extra = map[string]authorizationv1.ExtraValue{}
	for key, value := range u.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	review, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("reviewing access: %w", err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
