// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import "kubediag.org/kubediag/internal/linux/sys"

// AskRoot asks the root of a mount that the caller has open, with the questions
// of a pass. It waits as long as the file system does: only a process that can
// be lost may call it. The answer has no ID.
func AskRoot(root *sys.FD) Answer {
	w := &worker{pool: newPool(func(string) int { return 1 }), emit: func(any) error { return nil }}
	w.pool.reserveThread()
	defer w.pool.releaseThread()
	a := targetProbe{question: &question{}, worker: w, turn: &probeTurn{pool: w.pool, emit: w.emit, thread: sys.ThreadID()}}
	a.askStat(root, rootName)
	a.turn.finish()
	return a.answer
}
