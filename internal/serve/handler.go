// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"kubediag.org/kubediag/internal/processor"
)

const (
	pathPrefix   = "/processor/"
	maxBodyBytes = 2 << 20
	// maxReviewed bounds the requests whose callers are sending, and apart from them those whose callers are being looked up,
	// for each one that runs.
	maxReviewed = 8
	// maxUnknown is how many callers of one address are looked up at once.
	maxUnknown = 4
)

// Caller runs one built-in processor once, with the guard, the journal and the limits that an operation of a Diagnosis
// has.
type Caller interface {
	// Known tells whether there is a built-in processor of that name.
	Known(name string) bool
	Call(ctx context.Context, name string, r processor.Request) (processor.Result, error)
}

// Reviewer says who a caller is and what the caller may do. Access is the one that asks the API server.
type Reviewer interface {
	User(ctx context.Context, r *http.Request) (*authenticationv1.UserInfo, error)
	Allowed(ctx context.Context, u *authenticationv1.UserInfo, spec authorizationv1.SubjectAccessReviewSpec) (bool, error)
}

// Handler answers calls.
type Handler struct {
	caller   Caller
	reviewer Reviewer
	node     string
	timeout  time.Duration
	log      logr.Logger
	accepted chan struct{}
	running  chan struct{}

	mu        sync.Mutex
	unknown   map[string]int // callers who are being looked up, by address
	strangers int            // all of them
}

// HandlerOptions are what a Handler needs.
type HandlerOptions struct {
	Caller   Caller
	Reviewer Reviewer
	// Node is the name of this node.
	Node string
	// Timeout bounds one call.
	Timeout time.Duration
	// Workers is how many calls run at once. Further ones are told to come back.
	Workers int
	Log     logr.Logger
}

// NewHandler makes a Handler.
func NewHandler(o HandlerOptions) *Handler {
	return &Handler{
		caller: o.Caller, reviewer: o.Reviewer, node: o.Node, timeout: o.Timeout, log: o.Log,
		accepted: make(chan struct{}, maxReviewed*o.Workers),
		running:  make(chan struct{}, o.Workers),
		unknown:  map[string]int{},
	}
}

// refusal is an answer other than 200.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

var errBusy = refuse(http.StatusServiceUnavailable, "too many calls at once")

// ServeHTTP answers one call.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), h.timeout)
	defer cancel()
	values, err := h.answer(ctx, w, r)
	if err == nil {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(values) // a caller that has gone needs no answer
		return
	}
	no := &refusal{code: http.StatusInternalServerError, text: err.Error()}
	errors.As(err, &no)
	switch no.code {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, no.text, no.code)
}

// answer runs the checks in the order in which they tell a stranger least, then the processor.
func (h *Handler) answer(ctx context.Context, w http.ResponseWriter, r *http.Request) (map[string]string, error) {
	if r.Method != http.MethodPost {
		return nil, refuse(http.StatusMethodNotAllowed, "method %q: must be POST", r.Method)
	}
	user, err := h.meet(ctx, r)
	if err != nil {
		return nil, err
	}
	if !enter(h.accepted) {
		return nil, errBusy
	}
	defer leave(h.accepted)
	name, ok := strings.CutPrefix(r.URL.Path, pathPrefix)
	if !ok || !h.caller.Known(name) {
		return nil, refuse(http.StatusNotFound, "no processor at %q", r.URL.Path)
	}
	request, err := h.request(w, r)
	if err != nil {
		return nil, err
	}
	if err := h.admitToPod(ctx, user, request.Pod); err != nil {
		return nil, err
	}
	if !enter(h.running) {
		return nil, errBusy
	}
	defer leave(h.running)
	return h.call(ctx, user, name, request)
}

func (h *Handler) call(ctx context.Context, user *authenticationv1.UserInfo, name string, r processor.Request) (map[string]string, error) {
	log := h.log.WithValues("processor", name, "user", user.Username, "podNamespace", r.Pod.Namespace, "pod", r.Pod.Name)
	log.Info("Running a processor for a caller")
	result, err := h.caller.Call(ctx, name, r)
	switch {
	case err != nil:
		log.Error(err, "A processor failed for a caller")
		return nil, err
	case result.NotApplicable != "":
		return nil, refuse(http.StatusUnprocessableEntity, "%s", result.NotApplicable)
	case result.Values == nil:
		return map[string]string{}, nil
	}
	return result.Values, nil
}

// meet admits a caller within the bounds for those who are not known yet: so many of one address, and so many in all. None
// of them takes the place of a caller who is known.
func (h *Handler) meet(ctx context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	h.mu.Lock()
	full := h.unknown[address] >= maxUnknown || h.strangers >= cap(h.accepted)
	if !full {
		h.unknown[address]++
		h.strangers++
	}
	h.mu.Unlock()
	if full {
		return nil, errBusy
	}
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.strangers--
		if h.unknown[address]--; h.unknown[address] == 0 {
			delete(h.unknown, address)
		}
	}()
	return h.admit(ctx, r)
}

// admit lets in who has a token that the API server knows and may post to the path.
func (h *Handler) admit(ctx context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	user, err := h.reviewer.User(ctx, r)
	if err != nil {
		// The error has the address of the API server in it, which is nothing for a stranger.
		h.log.Error(err, "Could not find out who a caller is")
		return nil, refuse(http.StatusInternalServerError, "cannot tell who you are")
	}
	if user == nil {
		return nil, refuse(http.StatusUnauthorized, "a bearer token of the cluster is needed")
	}
	return user, h.must(ctx, user, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: "post"},
	}, "post to "+r.URL.Path)
}

// admitToPod lets through who may get the pod that the request names, or names none.
func (h *Handler) admitToPod(ctx context.Context, user *authenticationv1.UserInfo, pod processor.Pod) error {
	if pod.Name == "" {
		return nil
	}
	return h.must(ctx, user, authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: pod.Namespace, Name: pod.Name, Verb: "get", Version: "v1", Resource: "pods"},
	}, "get pod "+pod.Namespace+"/"+pod.Name)
}

func (h *Handler) must(ctx context.Context, user *authenticationv1.UserInfo, spec authorizationv1.SubjectAccessReviewSpec, what string) error {
	allowed, err := h.reviewer.Allowed(ctx, user, spec)
	if err != nil {
		h.log.Error(err, "Could not find out what a caller may do", "user", user.Username)
		return refuse(http.StatusInternalServerError, "cannot tell what you may do")
	}
	if !allowed {
		return refuse(http.StatusForbidden, "user %q may not %s", user.Username, what)
	}
	return nil
}

// request reads the body of a call.
func (h *Handler) request(w http.ResponseWriter, r *http.Request) (processor.Request, error) {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return processor.Request{}, refuse(http.StatusBadRequest, "Content-Type %q: must be application/json", kind)
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return processor.Request{}, refuse(http.StatusRequestEntityTooLarge, "the body must be %d bytes at most", maxBodyBytes)
	}
	if err != nil {
		return processor.Request{}, refuse(http.StatusBadRequest, "reading the body: %v", err)
	}
	values, err := parse(body)
	if err != nil {
		return processor.Request{}, err
	}
	return h.about(values)
}

// parse reads a JSON object whose values are strings, all of them.
func parse(body []byte) (map[string]string, error) {
	var object map[string]*string
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, refuse(http.StatusBadRequest, "the body must be a JSON object of strings: %v", err)
	}
	if object == nil {
		return nil, refuse(http.StatusBadRequest, "the body must be a JSON object of strings, not null")
	}
	values := make(map[string]string, len(object))
	for key, value := range object {
		if value == nil {
			return nil, refuse(http.StatusBadRequest, "the value of %q must be a string, not null", key)
		}
		values[key] = *value
	}
	return values, nil
}

// about takes from the values which pod they are about.
func (h *Handler) about(values map[string]string) (processor.Request, error) {
	pod := processor.Pod{
		Namespace: values[processor.KeyPodNamespace],
		Name:      values[processor.KeyPodName],
		Container: values[processor.KeyContainer],
	}
	if (pod.Namespace == "") != (pod.Name == "") {
		return processor.Request{}, refuse(http.StatusBadRequest, "%s %q and %s %q must be set together",
			processor.KeyPodNamespace, pod.Namespace, processor.KeyPodName, pod.Name)
	}
	if node := values[processor.KeyNode]; node != "" && node != h.node {
		return processor.Request{}, refuse(http.StatusBadRequest, "%s %q: this is node %q", processor.KeyNode, node, h.node)
	}
	return processor.Request{Node: h.node, Pod: pod, Values: values}, nil
}

func enter(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func leave(slots chan struct{}) { <-slots }
