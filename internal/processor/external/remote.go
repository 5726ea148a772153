// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/processor"
)

// Bounds of an answer, in bytes.
const (
	maxBody   = 4 << 20
	maxReason = 1 << 10
)

// refusalStatuses are the answers of a server that say that this is not the processor's fault.
var refusalStatuses = []int{http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity}

// remote is one server's processor. NewClient makes the client; name is for people.
//
// It calls a processor over HTTP or HTTPS by KubeDiag's contract: POST a JSON object of strings, get one back. 200 with
// such an object succeeds. 404, 409 and 422 say that this is not the processor's fault; all other answers fail. The
// server is not trusted: certificates are verified, no proxy is used, redirects are not followed, and time and size
// are bounded. A server may send the whole request back; the pipeline refuses an answer that changes a parameter
// or a context key.
type remote struct {
	client *http.Client
	name   string
	url    *url.URL
}

// Name is its name.
func (p *remote) Name() string { return p.name }

// Run posts the request and reads the answer, within the time that ctx allows.
func (p *remote) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	body, err := json.Marshal(r.Data())
	if err != nil {
		return processor.Result{}, fmt.Errorf("encode request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url.String(), bytes.NewReader(body))
	if err != nil {
		return processor.Result{}, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		if layer, ok := errors.AsType[*url.Error](err); ok { // in which net/http repeats the URL
			err = layer.Err
		}
		return processor.Result{}, p.describeFailure("post", err)
	}
	defer response.Body.Close()
	var result processor.Result
	switch location := response.Header.Get("Location"); {
	case response.StatusCode == http.StatusOK:
		result, err = decodeAnswer(response.Body)
	case slices.Contains(refusalStatuses, response.StatusCode):
		result.NotApplicable = refusalReason(response)
	case location != "":
		err = fmt.Errorf("status %q: a redirect to %.256q is not followed", response.Status, location)
	default:
		err = fmt.Errorf("status is not 200: %s", refusalReason(response))
	}
	if err != nil {
		return processor.Result{}, p.describeFailure("read answer", err)
	}
	return result, nil
}

// describeFailure names the server. The URL is printed without user and password.
func (p *remote) describeFailure(verb string, err error) error {
	return fmt.Errorf("%s %q: %w", verb, p.url.Redacted(), err)
}

// decodeAnswer takes a JSON object of strings, without text behind it.
func decodeAnswer(body io.Reader) (processor.Result, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxBody+1))
	if err != nil {
		return processor.Result{}, fmt.Errorf("receive body: %w", err)
	}
	if len(text) > maxBody {
		return processor.Result{}, fmt.Errorf("body is larger than %d bytes", maxBody)
	}
	var object map[string]*string
	if err := json.Unmarshal(text, &object); err != nil {
		return processor.Result{}, fmt.Errorf("body %s is no JSON object of strings: %.200s", excerptOf(text), err.Error())
	}
	if object == nil {
		return processor.Result{}, fmt.Errorf("body %s is no JSON object of strings", excerptOf(text))
	}
	values := make(map[string]string, len(object))
	for key, value := range object {
		if value == nil {
			return processor.Result{}, fmt.Errorf("body %s is no JSON object of strings: %.64q is null", excerptOf(text), key)
		}
		values[key] = *value
	}
	return processor.Result{Values: values}, nil
}

// refusalReason is the status and the beginning of the body. A body that cannot be read has none.
func refusalReason(response *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
	if len(bytes.TrimSpace(text)) == 0 {
		return "status " + response.Status
	}
	return "status " + response.Status + ": " + strings.ToValidUTF8(string(bytes.TrimSpace(text)), string(utf8.RuneError))
}

// excerptOf shows the beginning of a body in an error.
func excerptOf(text []byte) string {
	const most = 64
	if len(text) > most {
		return fmt.Sprintf("%q…", text[:most])
	}
	return fmt.Sprintf("%q", text)
}
