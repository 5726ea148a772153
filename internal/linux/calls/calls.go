// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package calls keeps a list of the calls that changed something, each with its arguments in short and its result. A
// context carries it from the caller to the code that makes the change. Without a list in the context no call is kept.
//
// Calls that only read are not in it. The code that starts a process adds the calls of that process.
package calls

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// Bounds of a list.
const (
	// MaxCalls is how many calls are kept.
	MaxCalls = 32
	// MaxBytes bounds each text.
	MaxBytes = 256
)

// OK is the result of a call that did not fail.
const OK = "ok"

// Call is one call.
type Call struct {
	// Name is the system call, or the request.
	Name      string `json:"name"`
	Arguments string `json:"arguments,omitempty"`
	// Result is OK, or the error.
	Result string `json:"result"`
}

// Log is a list of calls. Its zero value is empty and ready, and a nil Log keeps nothing. It may be used by several
// goroutines.
type Log struct {
	mu    sync.Mutex
	calls []Call
}

type contextKey struct{}

// With returns a context whose calls are added to the log.
func With(ctx context.Context, l *Log) context.Context {
	return context.WithValue(ctx, contextKey{}, l)
}

// From returns the log of a context; nil if it has none.
func From(ctx context.Context) *Log {
	l, _ := ctx.Value(contextKey{}).(*Log)
	return l
}

// Did adds a call, and returns its error.
func (l *Log) Did(name, arguments string, err error) error {
	result := OK
	if err != nil {
		result = err.Error()
	}
	l.Add(Call{Name: name, Arguments: arguments, Result: result})
	return err
}

// Add adds calls, such as those of another process, as far as there is room.
func (l *Log) Add(more ...Call) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range more[:min(len(more), MaxCalls-len(l.calls))] {
		l.calls = append(l.calls, Call{Name: clipText(c.Name), Arguments: clipText(c.Arguments), Result: clipText(c.Result)})
	}
}

// Take returns the calls, in order, and empties the log.
func (l *Log) Take() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.calls
	l.calls = nil
	return all
}

// All returns the calls, in order.
func (l *Log) All() []Call {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func clipText(text string) string {
	if len(text) <= MaxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:MaxBytes-3], "") + "..."
}
