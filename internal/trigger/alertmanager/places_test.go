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
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/bearer"
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
	must(t, err)
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
			if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil { // an idle one ends after a minute
				t.Fatal(err)
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
	for i := range 3 * bearer.MaxConnections {
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
	for range bearer.MaxConnections {
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

// Forty who guess tokens, at the address of the sender, cost the sender nothing: neither its first request nor later ones.
func TestGuessesRefuseNoSender(t *testing.T) {
	t.Parallel()
	r, got := newReceiver(t, bearer.NewReviewer(names{}, allowed{}, SenderRule()), "t")
	address := listen(t, r)
	ctx, stop := context.WithCancel(t.Context())
	var guessers sync.WaitGroup
	for i := range 40 {
		guessers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = post(ctx, http.DefaultClient, "http://"+address, fmt.Sprintf("forged%d-%d", i, n))
			}
		})
	}
	for i := range 10 {
		if code, err := post(t.Context(), http.DefaultClient, "http://"+address, "sender"); code != http.StatusOK {
			t.Errorf("request %d: status %d, %v", i, code, err)
		}
	}
	stop()
	guessers.Wait()
	if len(got.causes) != 10 {
		t.Errorf("%d causes", len(got.causes))
	}
}

// names takes each token for the name of its user, but those that are forged. allowed gives all users the right.
type (
	names   struct{}
	allowed struct{}
)

func (names) Create(_ context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.Status.Authenticated = !strings.HasPrefix(r.Spec.Token, "forged")
	r.Status.User.Username = r.Spec.Token
	return r, nil
}

func (allowed) Create(_ context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r.Status.Allowed = true
	return r, nil
}
