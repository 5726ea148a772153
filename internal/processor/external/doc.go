// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package external runs processors that users bring: over HTTP and HTTPS, and as scripts on the node.
package external
