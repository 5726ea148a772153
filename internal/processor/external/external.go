// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"kubediag.org/kubediag/internal/processor"
)

// Processors makes the processors of Operations that are not built in.
type Processors struct {
	// Node is the name of the node.
	Node string
	// HTTP calls servers.
	HTTP *http.Client
	// EnableScripts lets Operations run scripts, EnterScripts enters the mount namespace where they run. Nil: the
	// caller's own.
	EnableScripts bool
	EnterScripts  Enter
}

// Server returns the processor of an Operation that calls a server.
func (p *Processors) Server(operation string, u *url.URL) processor.Processor {
	return &remote{client: p.HTTP, name: operation, url: u}
}

// scriptProcessor returns the processor of an Operation that runs a script. It fails if scripts are off.
func (p *Processors) Script(operation, text string, argKeys []string, resultKey string) processor.Processor {
	if !p.EnableScripts {
		return disabled{name: operation, node: p.Node}
	}
	return &scriptProcessor{Operation: operation, Text: text, ArgKeys: argKeys, ResultKey: resultKey, Enter: p.EnterScripts}
}

// disabled stands for a script where scripts are off.
type disabled struct{ name, node string }

func (d disabled) Name() string { return d.name }

func (d disabled) Run(context.Context, processor.Request) (processor.Result, error) {
	return processor.Result{}, processor.Stalled(fmt.Errorf("scripts are off on node %q: its agent runs without --enable-scripts", d.node))
}
