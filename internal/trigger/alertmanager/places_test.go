// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// post sends one alert, and returns the status.
func post(ctx context.Context, client *http.Client, url, token string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/alertmanager", strings.NewReader(webhook))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// dial opens a connection that ends with the test.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a request over a connection and returns the status.
func ask(t *testing.T, c net.Conn, r *bufio.Reader, text string) int {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("%.60q: %v", text, err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

// A connection ends with its first answer that is not 200, and stays after one that is.
func TestRefusalsEndTheConnection(t *testing.T) {
	t.Parallel()
	line := func(method, path, token, body string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", method, path, token, len(body), body)
	}
	good := line("POST", "/alertmanager", token, webhook)
	for name, tc := range map[string]struct {
		text string
		code int
	}{
		"wrong token":   {line("POST", "/alertmanager", "wrong", webhook), 401},
		"no token":      {"POST /alertmanager HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 401},
		"no such path":  {line("POST", "/", token, webhook), 404},
		"wrong method":  {line("GET", "/alertmanager", token, ""), 405},
		"no alerts":     {line("POST", "/alertmanager", token, "{}"), 400},
		"another path":  {line("POST", "//alertmanager", token, webhook), 307},
		"all options":   {"OPTIONS * HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400},
		"a wrong line":  {"POST /alertmanager\r\n\r\n", 400},
		"without token": {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := newReceiver(t, only{}, "t")
			c := dial(t, listen(t, r))
			reader := bufio.NewReader(c)
			for range 3 {
				if code := ask(t, c, reader, good); code != 200 {
					t.Fatalf("a sender: status %d", code)
				}
			}
			if code := ask(t, c, reader, tc.text); code != tc.code {
				t.Errorf("status %d, want %d", code, tc.code)
			}
			if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection has not ended: %v", err)
			}
		})
	}
}

// Strangers at the address of the sender that hold as many connections as they like, and ask nothing or once, keep no sender out.
func TestIdleStrangersKeepNoSenderOut(t *testing.T) {
	t.Parallel()
	r, got := newReceiver(t, only{}, "t")
	address := listen(t, r)
	for i := range 3 * maxConnections {
		c := dial(t, address)
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		} else if _, err := io.WriteString(c, "POST /alertmanager HTTP/1.1\r\n"); err != nil {
			t.Logf("stranger %d: %v", i, err) // its place was taken back already
		}
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for i := range 5 {
		client.CloseIdleConnections() // a new connection each
		if code, err := post(t.Context(), client, "http://"+address, token); code != 200 {
			t.Errorf("request %d: status %d, %v", i, code, err)
		}
	}
	if len(got.causes) != 5 {
		t.Errorf("%d causes", len(got.causes))
	}
}

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
		want    byte   // address of the one that is closed; newcomer: the new one
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
			if len(p.open) != maxConnections || got.address != want || (got == fresh) != (tc.want == newcomer) || tc.number != 0 && got.number != tc.number {
				t.Errorf("number %d of %s yields (%d are open)", got.number, got.address, len(p.open))
			}
		})
	}
}

// A connection whose place is taken back ends its request, too.
func TestRequestEndsWithItsPlace(t *testing.T) {
	t.Parallel()
	auth := waits{began: make(chan context.Context, 1)}
	r, _ := newReceiver(t, auth)
	address := listen(t, r)
	first := dial(t, address)
	if _, err := fmt.Fprintf(first, "POST /alertmanager HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx := <-auth.began
	for range maxConnections {
		dial(t, address)
	}
	<-ctx.Done()
}

// waits answers only when the request ends.
type waits struct{ began chan context.Context }

func (w waits) Authenticate(ctx context.Context, _ string) error {
	w.began <- ctx
	<-ctx.Done()
	return ctx.Err()
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
