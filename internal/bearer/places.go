// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// MaxConnections is how many connections are open at once. Addresses share them: see places.yields.
	MaxConnections = 64
	// maxOfSender is how many connections of one address are let finish their requests, if others want their places.
	maxOfSender = MaxConnections / 4
	// keptForSender is how many connections of an address do not count against it after one of its senders was let in.
	keptForSender = 4
	// maxSenders and maxStrangers are how many addresses are remembered.
	maxSenders   = 64
	maxStrangers = 1024
	// senderFor is how long an address is that of a sender after its last alert.
	senderFor = 24 * time.Hour
)

// places is a listener that gives each connection a place, and takes one back if they are all taken. A new connection
// has its place unless each other one is of a sender whose request is under way.
//
// It is no share.Room. A Room refuses a newcomer whose owner has its part, and here no sender is known before the token was read: with 64
// addresses of strangers, or one for all behind a proxy, a Room would keep every sender out. So a place is taken back instead.
type places struct {
	net.Listener

	mu        sync.Mutex
	open      map[*conn]bool
	accepted  int                        // how many connections there were
	senders   map[netip.Prefix]time.Time // when a sender of the address was last let in
	strangers map[netip.Prefix]int       // refused requests of an address
}

func newPlaces(l net.Listener) *places {
	return &places{Listener: l, open: map[*conn]bool{}, senders: map[netip.Prefix]time.Time{}, strangers: map[netip.Prefix]int{}}
}

// conn is a connection in its place.
type conn struct {
	net.Conn

	of      *places
	address netip.Prefix
	number  int

	// places.mu is for these.
	proven  bool // a sender was let in
	serving bool // a request is under way
	cancel  context.CancelFunc
}

// Accept waits for a connection, and closes another one if there is no place for it.
func (p *places) Accept() (net.Conn, error) {
	accepted, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, of: p, address: addressOf(accepted.RemoteAddr())}
	p.mu.Lock()
	p.accepted++
	c.number = p.accepted
	var yields *conn
	if len(p.open) == MaxConnections {
		yields = p.yields(c)
	}
	if yields != c {
		p.open[c] = true
	}
	p.mu.Unlock()
	if yields != nil {
		_ = yields.Close()
	}
	return c, nil
}

// addressOf is the address that shares places. Of IPv6 it is the first half, because a host may have as many addresses there as
// it likes.
func addressOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// yields chooses the connection that is closed: without a proof first, then one of a sender that waits for its next request. Among
// these it is one of the address that has most of them, and of that the oldest. A request of a sender is cut off only if
// its address has more than a quarter of all places. The new connection comes last.
func (p *places) yields(newcomer *conn) *conn {
	count := map[netip.Prefix]int{newcomer.address: 1}
	for c := range p.open {
		count[c.address]++
	}
	weight := func(c *conn) int {
		if p.isSender(c.address) {
			return max(0, count[c.address]-keptForSender)
		}
		return count[c.address]
	}
	group := func(c *conn) int {
		switch {
		case !c.proven:
			return 0
		case !c.serving:
			return 1
		case count[c.address] > maxOfSender:
			return 2
		}
		return 3
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(p.open)), func(a, b *conn) int {
		return cmp.Or(group(a)-group(b), weight(b)-weight(a), a.number-b.number)
	})
	if group(first) == 3 {
		return newcomer
	}
	return first
}

// isSender reports whether a sender of the address was let in lately.
func (p *places) isSender(address netip.Prefix) bool {
	last, ok := p.senders[address]
	return ok && time.Since(last) < senderFor
}

// attach has the requests of a connection end with it. It is http.Server.ConnContext.
func attach(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}
	placed, ok := c.(*conn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connKey{}, placed))
	placed.of.mu.Lock()
	defer placed.of.mu.Unlock()
	placed.cancel = cancel
	if !placed.of.open[placed] {
		cancel()
	}
	return ctx
}

type connKey struct{}

// connOf is the connection of a request; nil outside of a server.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// Close closes the connection, gives its place back, and ends its request.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	cancel := c.cancel
	c.of.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return c.Conn.Close()
}

// CloseWrite lets the other side read the last answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("closing one direction of %T: not possible", c.Conn)
}

// setServing says whether a request is under way.
func (c *conn) setServing(now bool) {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.serving = now
}

// letIn remembers the address of a sender that has proved its right.
func (c *conn) letIn() {
	if c == nil {
		return
	}
	p := c.of
	p.mu.Lock()
	defer p.mu.Unlock()
	c.proven = true
	delete(p.strangers, c.address)
	if _, known := p.senders[c.address]; !known && len(p.senders) == maxSenders {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(p.senders)), func(a, b netip.Prefix) int { return p.senders[a].Compare(p.senders[b]) })
		delete(p.senders, oldest)
	}
	p.senders[c.address] = time.Now()
}

// countRefusal counts a request that had no right.
func (c *conn) countRefusal() {
	if c == nil {
		return
	}
	p := c.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.strangers[c.address]; !known && len(p.strangers) == maxStrangers {
		clear(p.strangers)
	}
	p.strangers[c.address]++
}

// rank orders the addresses whose tokens are to be asked about: those of senders first, then those with the fewest refusals.
func (c *conn) rank() int {
	if c == nil {
		return 0
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.isSender(c.address) {
		return -1
	}
	return c.of.strangers[c.address]
}
