// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// held is connections of an address: n of them, of a kind.
type held struct {
	address byte
	n       int
	kind    string // idle strangers; "proven", "serving"
}

// The connection that yields is not the sender's, nor that of an address with few.
func TestWhoYields(t *testing.T) {
	t.Parallel()
	const newcomer = 200
	for name, tc := range map[string]struct {
		held    []held
		senders []byte // addresses
		from    byte   // of the new connection
		want    byte   // address of the connection that is closed; newcomer: the new connection
		number  int    // which one of them; 0: any
	}{
		"one address has all":                {[]held{{1, 64, ""}}, nil, 2, 1, 1},
		"its own new one":                    {[]held{{1, 64, ""}}, nil, 1, 1, 1},
		"heaviest address":                   {[]held{{1, 20, ""}, {2, 24, ""}, {3, 20, ""}}, nil, 4, 2, 21},
		"one each":                           {[]held{{1, 1, ""}, {2, 1, ""}, {3, 62, ""}}, nil, 4, 3, 3},
		"strangers before idle senders":      {[]held{{1, 63, "proven"}, {2, 1, ""}}, []byte{1}, 3, 2, 0},
		"idle senders without strangers":     {[]held{{1, 60, "proven"}, {2, 4, "proven"}}, []byte{1, 2}, 3, 1, 1},
		"sender that has not asked yet":      {[]held{{1, 4, ""}, {2, 60, ""}}, []byte{1}, 3, 2, 0},
		"few of a sender beside one each":    {[]held{{1, 4, ""}, {2, 1, ""}, {3, 59, "proven"}}, []byte{1, 3}, 4, 2, 0},
		"strangers at the sender's address":  {[]held{{1, 60, ""}, {2, 4, ""}}, []byte{1}, 3, 1, 1},
		"requests are not cut off":           {[]held{{1, 16, "serving"}, {2, 16, "serving"}, {3, 16, "serving"}, {4, 16, "serving"}}, []byte{1, 2, 3, 4}, 5, newcomer, 0},
		"but of who has more than a quarter": {[]held{{1, 40, "serving"}, {2, 24, "serving"}}, []byte{1, 2}, 3, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlaces(nil)
			at := func(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32) }
			for _, h := range tc.held {
				for range h.n {
					p.accepted++
					p.open[&conn{of: p, address: at(h.address), number: p.accepted, proven: h.kind != "", serving: h.kind == "serving"}] = true
				}
			}
			for _, n := range tc.senders {
				p.senders[at(n)] = time.Now()
			}
			fresh := &conn{of: p, address: at(tc.from), number: p.accepted + 1}
			got := p.yields(fresh)
			want := at(tc.want)
			if tc.want == newcomer {
				want = fresh.address
			}
			if len(p.open) != MaxConnections || got.address != want || (got == fresh) != (tc.want == newcomer) || tc.number != 0 && got.number != tc.number {
				t.Errorf("number %d of %s yields (%d are open)", got.number, got.address, len(p.open))
			}
		})
	}
}

// The memory of addresses is bounded, and strangers push no sender out of it.
func TestAddressesAreBounded(t *testing.T) {
	t.Parallel()
	p := newPlaces(nil)
	at := func(i int) *conn {
		return &conn{of: p, address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)}
	}
	for i := range 2 * maxSenders {
		at(i).letIn()
	}
	for i := range 3 * maxStrangers {
		at(1<<16 + i).countRefusal()
	}
	if len(p.senders) != maxSenders || len(p.strangers) > maxStrangers || at(2*maxSenders-1).rank() != -1 || at(0).rank() != 0 {
		t.Errorf("%d senders and %d strangers are remembered", len(p.senders), len(p.strangers))
	}
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "::ffff:10.1.2.3": "10.1.2.3/32", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
	} {
		if got := addressOf(&net.TCPAddr{IP: net.ParseIP(text)}); got.String() != want {
			t.Errorf("%s counts as %s", text, got)
		}
	}
}
