// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// errNotServed is in the error of a request for a resource that the API server does not know.
var errNotServed = errors.New("not served")

// errMissing is in the error of a request for an object that is not there.
var errMissing = errors.New("not found")

// action is what was asked of the API server.
type action struct {
	verb string
	place
	object string // its name; empty for those of a place
}

// about reports whether the API server's answer is about an object of this resource, and not about its namespace.
func about(err error, name string) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == name
}

// full is the name of the object, with its namespace.
func (a action) full() string {
	if a.global || a.namespace == "" {
		return a.object
	}
	return a.namespace + "/" + a.object
}

// said turns the API server's answer into an error that says what to do.
func (c *client) said(a action, err error) error {
	var dial *net.OpError
	var address *url.Error
	switch {
	case err == nil:
		return nil
	case notServed(err) && a.Group == v1.Group:
		return fmt.Errorf("kubediag is not installed: the API server serves no %s: apply config/default, and see docs/install.md: %w", a.resource, errNotServed)
	case notServed(err):
		return fmt.Errorf("the API server serves no %s: %w", a.resource, errNotServed)
	case apierrors.IsNotFound(err) && about(err, a.name):
		return fmt.Errorf("%s %s: %w", a.resource, a.full(), errMissing)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", verb.ErrRefused, err) // it names the user, the verb and the resource, or the policy
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials of the kubeconfig: %w", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return fmt.Errorf("%s %s: the API server did not answer within %s: give it more with --request-timeout", a.verb, a.resource, c.timeout)
	case errors.As(err, &address) && errors.As(err, &dial):
		return fmt.Errorf("the API server at %s is not reached: %w", c.config.Host, dial)
	}
	return fmt.Errorf("%s %s: %w", a.verb, a.resource, err)
}

// notServed reports whether the path of a request is unknown, and not only the object.
func notServed(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == "" || len(details.Causes) > 0 && details.Causes[0].Type == metav1.CauseTypeUnexpectedServerResponse
}
