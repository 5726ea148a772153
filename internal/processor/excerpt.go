// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

// Excerpter is a Processor that knows which part of a long result matters. The whole is kept on the node
// and handed to later operations; the excerpt is what people see in the status.
type Excerpter interface {
	// Excerpt chooses from a value what fits in limit bytes. A longer text is cut off.
	Excerpt(r Request, key, value string, limit int) string
}
