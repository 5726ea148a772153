// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package executor runs one Diagnosis on this node: it reads the OperationSet and its Operations, has package pipeline
// run them, and writes down in the status what happened. It turns the API's types into the pipeline's and back, and
// talks to a Store for everything else: that is the API server for the agent, and memory for the demo.
//
// A status is written when a Diagnosis is accepted, before something is repaired, and at the end; not more often. The
// pipeline's journal holds the work in progress, so a Diagnosis can be given to Run again after anything that may
// happen.
package executor
