// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"

	v1 "kubediag.org/kubediag/api/v1"
)

// join makes of a full API server and an old server for custom resources one that serves everything, as the aggregation
// layer would.
func join(full, old *rest.Config) (*rest.Config, error) {
	to, err := url.Parse(old.Host)
	if err != nil {
		return nil, err
	}
	custom, err := rest.TransportFor(old)
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(full)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return RoundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(r.URL.Path, "/apis/"+v1.Group+"/") && !strings.HasPrefix(r.URL.Path, "/apis/apiextensions.k8s.io/") {
				return next.RoundTrip(r)
			}
			r = r.Clone(r.Context())
			r.URL.Scheme, r.URL.Host, r.Host = to.Scheme, to.Host, to.Host
			return custom.RoundTrip(r)
		})
	}
	return config, nil
}
