// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package processor is the contract between the pipeline and the steps that it runs: collectors, diagnosers and recoverers.
//
// A Processor only looks. A Recoverer changes things, and therefore says first what it would do (Plan), does it one
// action at a time (Apply), and proves that it worked (Verify). Time limits, panics, retries, durations, journal,
// size limits and redaction belong to the pipeline, never to a processor.
package processor
