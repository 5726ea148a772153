// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

// Excerpter is a Processor that knows which part of a long result matters. The whole is kept on the node
// and handed to later operations; people see the excerpt in the status.
type Excerpter interface {
	// Excerpt chooses a part of a value that fits in limit bytes. A longer text is cut off.
	Excerpt(r Request, key, value string, limit int) string
}
