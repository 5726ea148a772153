// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"path"
	"sync/atomic"
)

// maxFormBytes bounds the body of a request.
const maxFormBytes = 4 << 10

// pageGuard lets one browser in, by a token that counts once, and keeps out other users of the machine, other pages of that browser,
// and names of other hosts that lead to this address.
type pageGuard struct {
	next http.Handler
	host string // and port, as the browser sends it
	// token is in the address that is printed, session in the cookie, form in the forms of pages.
	token, session, form string
	used                 atomic.Bool   // the token
	redeemed             chan struct{} // is closed when it was
}

func newPageGuard(host string) *pageGuard {
	return &pageGuard{host: host, token: rand.Text(), session: rand.Text(), form: rand.Text(), redeemed: make(chan struct{})}
}

// cookieName has the port: browsers share cookies between the ports of a host.
func (g *pageGuard) cookieName() string { return "kubediag-" + g.host[len("127.0.0.1:"):] }

// headers are those of each answer.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
	"X-Frame-Options":         "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
	"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// ServeHTTP answers only the browser that was let in.
func (g *pageGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	origin := r.Header.Get("Origin")
	if r.Host != g.host || origin != "" && origin != "http://"+g.host {
		http.Error(w, "this address is not served", http.StatusMisdirectedRequest)
		return
	}
	if token := r.URL.Query().Get("token"); r.Method == http.MethodGet && token != "" && same(token, g.token) && !g.used.Swap(true) {
		http.SetCookie(w, &http.Cookie{Name: g.cookieName(), Value: g.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}) //nolint:gosec // the page is served without TLS, on this machine alone
		close(g.redeemed)
		leadTo(w, r, path.Clean(r.URL.EscapedPath())) // two slashes would lead to another host
		return
	}
	cookie, err := r.Cookie(g.cookieName())
	if err != nil || !same(cookie.Value, g.session) {
		http.Error(w, "open the address that kubectl kubediag ui has printed; it counts once, so start it again for another browser", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
	if r.Method != http.MethodGet && (r.Method != http.MethodPost || origin == "" || !same(r.PostFormValue("token"), g.form)) {
		http.Error(w, "this request is not from a page of kubediag", http.StatusForbidden)
		return
	}
	g.next.ServeHTTP(w, r)
}

// leadTo leads a browser to a page of this server. If a file has led it here, all redirections count as coming from that file, and the
// browser would send no cookie that is SameSite=Strict: a page of this server has to lead on.
func leadTo(w http.ResponseWriter, r *http.Request, to string) {
	if from := r.Header.Get("Sec-Fetch-Site"); from == "" || from == "none" || from == "same-origin" {
		http.Redirect(w, r, to, http.StatusSeeOther)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Refresh", "0; url="+to)
}
