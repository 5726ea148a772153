// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// slowReviews takes long to find out that a token is nobody's.
type slowReviews struct{ people }

func (s slowReviews) User(c context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	user, err := s.people.User(c, r)
	if user == nil && err == nil {
		time.Sleep(time.Minute)
	}
	return user, err
}

// A hundred requests with tokens of nobody, from one address, leave room for a rightful caller.
func TestStrangersShutNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHandler(HandlerOptions{Caller: &calls{}, Reviewer: slowReviews{everybody}, Node: "n1", Timeout: time.Hour, Workers: 4, Log: logr.Discard()})
		call := func(address, user string) int {
			r := httptest.NewRequest(http.MethodPost, "/processor/known", strings.NewReader("{}"))
			r.RemoteAddr = address
			r.Header.Set("Authorization", "Bearer "+user)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		codes := make(chan int, 100)
		for range 100 {
			go func() { codes <- call("10.0.0.1:1234", "nobody") }()
		}
		synctest.Wait()
		if code := call("10.0.0.2:1234", "caller"); code != http.StatusOK {
			t.Errorf("a rightful caller gets %d", code)
		}
		time.Sleep(time.Hour)
		count := map[int]int{}
		for range 100 {
			count[<-codes]++
		}
		if count[http.StatusUnauthorized] != maxUnknown || count[http.StatusServiceUnavailable] != 100-maxUnknown || len(h.unknown) != 0 {
			t.Errorf("answers to strangers: %v; still counted: %v", count, h.unknown)
		}
	})
}
