// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package ui looks at the pages of kubediag with a real browser, Debian's chromium. Its API server is a few answers in memory, so that
// any fault can come and go. Its screenshots are in bin/ui.
package ui
