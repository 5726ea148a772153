// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// Applied is how an action went that did not fail.
type Applied struct {
	// Already is set if this call changed nothing, because the action's purpose had come about without it.
	Already bool
	// Message says how it went, for people.
	Message string
}

// AlreadySo is the result of an action that had nothing left to do.
func AlreadySo(message string) Applied { return Applied{Already: true, Message: message} }
