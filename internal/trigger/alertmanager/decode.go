// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxAlerts is how many alerts one request may have.
const maxAlerts = 2000

// errTooMany refuses a request with more.
var errTooMany = fmt.Errorf("more than %d alerts", maxAlerts)

// alert is one alert in any of the forms: of the webhook of Alertmanager, and of its API v1 and v2, which have no status.
type alert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL"`
}

// decode reads the body of a request: the object of the webhook, or an array of alerts.
func decode(body []byte) ([]alert, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil, errors.New("body is empty")
	}
	if body[0] == '{' {
		var message struct { // only the alerts in it matter
			Alerts json.RawMessage `json:"alerts"`
		}
		if err := json.Unmarshal(body, &message); err != nil {
			return nil, err
		}
		if message.Alerts == nil {
			return nil, errors.New("object has no alerts")
		}
		body = message.Alerts
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if first, err := d.Token(); err != nil || first != json.Delim('[') {
		return nil, errors.Join(errors.New("alerts are no array"), err)
	}
	var all []alert
	for d.More() { // one after the other: an array of a million empty ones takes no memory before it is refused
		if len(all) == maxAlerts {
			return nil, errTooMany
		}
		var a alert
		if err := d.Decode(&a); err != nil {
			return nil, fmt.Errorf("decoding alert %d: %w", len(all), err)
		}
		all = append(all, a)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the alerts")
	}
	return all, nil
}

// resolved reports whether an alert is over. Those of the API v1 and v2 say it by a time that has passed.
func (a *alert) resolved(now time.Time) bool {
	if a.Status != "" {
		return a.Status != "firing"
	}
	return !a.EndsAt.IsZero() && !a.EndsAt.After(now)
}
