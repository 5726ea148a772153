// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster holds the verbs of kubectl kubediag: they ask the API server, with the rights of the user's kubeconfig,
// and never look at a node themselves. The agent of a node acts there, for a Diagnosis.
//
// The flags are those of kubectl. They come from client-go's clientcmd, and not from cli-runtime's genericclioptions: that
// needs the scheme of all kinds of Kubernetes. To set it up at the start of every verb, also of those of a node, takes
// twice as long as all else together. Objects are printed by cli-runtime's printers.
package cluster
