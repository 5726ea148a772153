// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
)

// errStranded: the thread could not go back to its own namespace.
var errStranded = errors.New("thread cannot leave the mount namespace")

// inNamespace runs fn in the question's namespace, on the calling thread, which has files of its own, and takes it back
// at once: a thread that hangs must not keep a namespace and its mounts alive. fn sends no request to a file system.
// mountns.Namespace.Do would take another thread, without those files.
func (q *question) inNamespace(fn func() error) error {
	if q.Own {
		return fn()
	}
	leave, err := q.Namespace.Enter()
	if err != nil {
		return fmt.Errorf("enter mount namespace %s: %w", q.Namespace, err)
	}
	err = fn()
	if back := leave(); back != nil {
		return fmt.Errorf("%w: %w", errStranded, back)
	}
	return err
}
