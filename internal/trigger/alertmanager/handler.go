// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kubediag.org/kubediag/internal/bearer"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/trigger"
)

// maxDecoding is how many bodies are decoded at once: a decoded body takes several times its size.
const maxDecoding = 2

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration { return []metric.Declaration{requestsTotal} }

var (
	requestsTotal = metric.Declaration{
		Name: "kubediag_trigger_alert_requests_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "code"}},
		Help: "Requests to the receiver of alerts, by the status of the answer.",
	}
	requests = requestsTotal.CounterVec()
)

func init() { metrics.Registry.MustRegister(requests) }

// failure is an answer that is not 200.
type failure struct {
	code    int
	message string
}

// server serves the paths of Alertmanager's API, and one for its webhook. There are no others.
func (r *Receiver) server() *http.Server {
	if r.now == nil {
		r.now = time.Now
	}
	if r.slow == 0 {
		r.slow = readTimeout
	}
	if r.room == nil {
		r.room = make(chan struct{}, maxDecoding)
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/alertmanager", "/api/v1/alerts", "/api/v2/alerts"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, request *http.Request) {
			matched, failed := r.receive(w, request)
			if failed == nil {
				requests.WithLabelValues(strconv.Itoa(http.StatusOK)).Inc()
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, "{\"status\":\"success\",\"matched\":%d}\n", matched)
				return
			}
			requests.WithLabelValues(strconv.Itoa(failed.code)).Inc()
			if failed.code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, failed.message, failed.code)
		})
	}
	return bearer.NewServer(mux, r.slow)
}

// receive answers one request. Alertmanager sends it again after 503, and not after 4xx.
func (r *Receiver) receive(w http.ResponseWriter, request *http.Request) (matched int, failed *failure) {
	if code, message := bearer.Check(r.Auth, request); code != 0 {
		return 0, &failure{code, message}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return 0, &failure{http.StatusRequestEntityTooLarge, fmt.Sprintf("body is larger than %d bytes", maxBodyBytes)}
	case err != nil:
		return 0, &failure{http.StatusRequestTimeout, "body did not come"}
	}
	select {
	case r.room <- struct{}{}:
		defer func() { <-r.room }()
	case <-request.Context().Done():
		return 0, &failure{http.StatusServiceUnavailable, "too many requests at once"}
	}
	alerts, err := decode(body)
	switch {
	case errors.Is(err, errTooMany):
		return 0, &failure{http.StatusRequestEntityTooLarge, err.Error()}
	case err != nil:
		return 0, &failure{http.StatusBadRequest, err.Error()}
	}
	now := r.now()
	for i := range alerts {
		trigger.Seen(trigger.KindAlert)
		if alerts[i].resolved(now) {
			continue
		}
		n, err := r.rules.Apply(r.To, signal{alert: &alerts[i], now: now})
		matched += n
		if err != nil && failed == nil { // all are compared before it is returned
			failed = &failure{http.StatusServiceUnavailable, err.Error()}
		}
	}
	if failed != nil {
		return 0, failed
	}
	return matched, nil
}
