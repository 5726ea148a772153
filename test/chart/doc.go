// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package chart compares charts/kubediag with config, and installs it on a real API server with the program helm. It has no code
// outside its tests.
package chart
