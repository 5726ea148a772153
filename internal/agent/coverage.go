// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/mountstate"
)

// Intervals of the looks at the whole node. A mount that one look could not judge may have been about to change: the next look follows sooner, and each
// later one after twice the time.
const (
	firstCoverage   = 5 * time.Second
	coverageAgain   = 20 * time.Second
	coverageEvery   = 5 * time.Minute
	coverageTimeout = 2 * time.Minute // of one look
)

// maxNotJudgedLogged is how many places a line of the log names.
const maxNotJudgedLogged = 10

// coverage looks at the whole node from time to time, as scan does, and keeps how much of it could not be judged. Without that, a cluster
// without a known fault would pass for a healthy cluster, though no agent has judged its mounts.
type coverage struct {
	look func(ctx context.Context) (mountstate.Survey, error)
	log  logr.Logger
	// watching says whether the sentinel watches all that it should.
	watching func() bool

	last *mountstate.Unknown // of the last look; nil: there is none, or it has failed

	mu      sync.Mutex
	looked  bool               // whether unknown is that of the node
	unknown mountstate.Unknown // of the last two looks
}

// newCoverage makes the part that looks at all of this node.
func (a *agent) newCoverage(watching func() bool) *coverage {
	node := a.searched(a.volumes.Prober)
	node.OrphanAge, node.Specs = orphan.DefaultMinimumAge, somePods{a.pods, nil}
	return &coverage{log: a.manager.GetLogger().WithName("coverage"), watching: watching, look: func(ctx context.Context) (mountstate.Survey, error) {
		at, err := a.kubelet.Node(ctx)
		if err != nil {
			return mountstate.Survey{}, err
		}
		n := node
		n.Kubelet = at.ReadOnce()
		n.PodUIDs = n.Kubelet.PodUIDs
		return searches.Look(ctx, n)
	}}
}

// Start looks until ctx is done.
func (c *coverage) Start(ctx context.Context) error {
	again := coverageAgain
	for next := time.After(firstCoverage); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		if c.lookOnce(ctx) {
			again, next = coverageAgain, time.After(coverageEvery)
			continue
		}
		next = time.After(again)
		again = min(2*again, coverageEvery)
	}
}

// lookOnce looks, and reports whether that has judged everything. A place counts if two looks in a row could not judge it.
func (c *coverage) lookOnce(ctx context.Context) (all bool) {
	ctx, cancel := context.WithTimeout(ctx, coverageTimeout)
	defer cancel()
	survey, err := c.look(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.last, c.looked = nil, false
		c.log.Error(err, "Could not look at the whole node")
		return false
	}
	now, before := survey.Unknown, c.unknown.Sentences()
	switch {
	case now.None():
		c.looked, c.unknown = true, now
	case c.last != nil:
		c.looked, c.unknown = true, now.Also(*c.last)
	}
	c.last = &now
	if sentences := c.unknown.Sentences(); !slices.Equal(sentences, before) {
		c.log.Info("Looked at the whole node", "notJudged", len(sentences), "first", sentences[:min(len(sentences), maxNotJudgedLogged)])
	}
	return now.None()
}

// notJudged is the value of LabelNotJudged; empty: all was judged.
func (c *coverage) notJudged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.looked || !c.watching():
		return v1.NothingJudged
	case c.unknown.None():
		return ""
	}
	return strconv.Itoa(c.unknown.Count())
}

// register registers the metric.
func (c *coverage) register(r prometheus.Registerer) error {
	return register(r, partsNotJudged.GaugeFunc(func() float64 {
		switch value := c.notJudged(); value {
		case "":
			return 0
		case v1.NothingJudged:
			return -1
		default:
			n, _ := strconv.Atoi(value)
			return float64(n)
		}
	}))
}
