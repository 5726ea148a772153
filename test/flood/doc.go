// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package flood fills a real API server with the largest objects that tenants and agents may create, and has the agent and the manager
// work within the memory that their manifests give them. It needs root.
package flood
