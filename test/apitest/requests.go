// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// RoundTripper sends requests by a function.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Request is one that was sent.
type Request struct {
	Method, Path string
	At           time.Time
}

// Requests are those of the clients of a configuration, in their order.
type Requests struct {
	mu   sync.Mutex
	sent []Request
}

// Record keeps the requests of clients that are made of the configuration from now on.
func Record(config *rest.Config) *Requests {
	all := &Requests{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return RoundTripper(func(r *http.Request) (*http.Response, error) {
			all.mu.Lock()
			all.sent = append(all.sent, Request{r.Method, r.URL.Path, time.Now()})
			all.mu.Unlock()
			return next.RoundTrip(r)
		})
	})
	return all
}

// To returns the requests so far whose path has a part.
func (r *Requests) To(part string) (found []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.sent {
		if strings.Contains(one.Path, part) {
			found = append(found, one)
		}
	}
	return found
}
