// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests what config/alerts and config/dashboards have, with Debian's Prometheus and Alertmanager and a real
// fault on a node. It has no code outside its tests.
package monitoring
