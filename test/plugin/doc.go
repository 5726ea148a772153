// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugin tests kubectl kubediag through its program alone, against a real API server, manager and agent, on mounts that
// are really broken. The kubelet is the test.
package plugin
