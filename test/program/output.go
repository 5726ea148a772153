// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"sync"
)

// Output is what a program that runs has written so far. The zero value is ready for use, also by several goroutines.
type Output struct {
	mu      sync.Mutex
	written bytes.Buffer
}

// Write takes output, and never fails.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written.Write(text)
}

// Text returns all that was written.
func (o *Output) Text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written.String()
}
