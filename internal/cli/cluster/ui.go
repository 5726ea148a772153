// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/browser"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/ui"
)

// Times of the server of pages.
const (
	headerTimeout = 5 * time.Second
	// changeInterval is the least time between two reports of changes to a page, keepAlive the longest without a line.
	changeInterval = 250 * time.Millisecond
	keepAlive      = 20 * time.Second
)

// memoryGoal is the memory from which on the server collects garbage more often: lists of large clusters come and go.
const memoryGoal = 32 << 20

// maxHeaderBytes bounds the head of a request.
const maxHeaderBytes = 16 << 10

// uiOptions are the flags of the verb ui.
type uiOptions struct {
	status    statusOptions
	port      int
	noBrowser bool
}

func newUICommand(conn *connection) *cobra.Command {
	o := &uiOptions{status: statusOptions{connection: conn}}
	cmd := &cobra.Command{
		Use:   "ui [pod/[NAMESPACE/]NAME]",
		Short: "Serve pages for the browser of this machine: faults, Diagnoses, plans to approve",
		Long: "ui serves pages on 127.0.0.1, until Ctrl-C. They are drawn again when something changes. It acts with your rights only,\n" +
			"and needs no more than status does. It prints an address with a token that works once, for one browser, and opens it\n" +
			"if there is a desktop. Over SSH it only prints it.\n\n" +
			"With pod/NAME or pod/NAMESPACE/NAME, the address leads to the faults of that pod. --namespace narrows the pages to one\n" +
			"namespace.",
		Example: "  kubectl kubediag ui\n  kubectl kubediag ui pod/shop/web-0",
		Args:    verb.Takes("pod/NAME", 0),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.runUI(cmd, args) },
	}
	cmd.Flags().StringVar(&o.status.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	cmd.Flags().IntVar(&o.port, "port", 0, "the port (default: any that is free)")
	cmd.Flags().BoolVar(&o.noBrowser, "no-browser", false, "print the address, and open no browser")
	ui.AddLanguage(cmd, &o.status.language)
	return cmd
}

// runUI serves pages until ctx ends.
func (o *uiOptions) runUI(cmd *cobra.Command, args []string) error {
	apiClient, err := o.status.newClient()
	if err != nil {
		return err
	}
	s := &pageServer{
		options: o, api: apiClient, namespace: apiClient.namespaceUnless(!o.status.set.Changed("namespace")), changed: make(chan struct{}),
		shared: map[string]*sharedPage{},
	}
	start, err := startPage(args, apiClient.namespace)
	if err != nil {
		return err
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryGoal))
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.port))
	if err != nil {
		return fmt.Errorf("serve pages: %w", err)
	}
	guard := newPageGuard(listener.Addr().String())
	guard.next, s.form = s.routes(), guard.form
	changes := make(chan struct{}, 1)
	s.state = followState(ctx, apiClient, s.namespace, o.status.home, func() {
		select {
		case changes <- struct{}{}:
		default: // one is reported soon
		}
	})
	go s.reportChanges(ctx, changes)
	server := &http.Server{
		Handler: guard, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaderBytes, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	address := fmt.Sprintf("http://%s%s?token=%s", guard.host, start, guard.token)
	if err := verb.Write(cmd.OutOrStdout(), "Open "+address+"\n"); err != nil {
		return err
	}
	if !o.noBrowser {
		defer o.openBrowser(cmd, guard, address)()
	}
	if err := verb.Write(cmd.OutOrStdout(), "Ctrl-C ends.\n"); err != nil {
		return err
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages: %w", err)
	}
	return nil
}

// startPage is the page that the printed address leads to: the first one, or that of a pod.
func startPage(args []string, namespace string) (string, error) {
	if len(args) == 0 {
		return "/", nil
	}
	parts := strings.Split(args[0], "/")
	if len(parts) == 2 { // without a namespace
		parts = []string{parts[0], namespace, parts[1]}
	}
	if len(parts) != 3 || parts[0] != "pod" || slices.Contains(parts, "") {
		return "", fmt.Errorf("%q: must be pod/NAME or pod/NAMESPACE/NAME", args[0])
	}
	return path.Join("/pod", url.PathEscape(parts[1]), url.PathEscape(parts[2])), nil
}

// openBrowser opens the address if there is a desktop. The function that it returns removes the file that leads there, if the
// browser has not come.
func (o *uiOptions) openBrowser(cmd *cobra.Command, guard *pageGuard, address string) (remove func()) {
	remove, err := browser.Open(address)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "kubediag: %s; open the address yourself\n", printable.Quoted(err.Error()))
	}
	if remove == nil {
		return func() {}
	}
	remove = sync.OnceFunc(remove)
	go func() {
		select {
		case <-guard.redeemed:
		case <-cmd.Context().Done():
		}
		remove()
	}()
	return remove
}

// pageServer makes pages with the rights of a user.
type pageServer struct {
	options   *uiOptions
	api       *client
	state     statusSource
	namespace string // empty: all
	form      string // the token of forms

	mu      sync.Mutex
	changed chan struct{}          // is closed when something changes
	version int                    // counts the changes that were reported
	last    *statusReport          // the last complete report
	shared  map[string]*sharedPage // by address, while a browser waits for it
}

func (s *pageServer) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range map[string]func(*http.Request) (ui.Page, error){
		"GET /{$}": s.nowPage, "GET /fault/{namespace}/{name}": s.faultPage, "GET /pod/{namespace}/{name}": s.podPage,
		"GET /diagnosis/{namespace}/{name}": s.diagnosisPage, "GET /nodes": s.nodesPage, "GET /node/{name}": s.nodePage, "GET /approve": s.approvePage,
		"GET /policies": s.policiesPage, "GET /triggers": s.triggersPage,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.servePage(w, r, page) })
	}
	for pattern, act := range map[string]func(*http.Request) (*v1.Diagnosis, error){
		"POST /plan/{namespace}/{name}": s.planPod, "POST /repair/{namespace}/{name}": s.withDiagnosis(s.repair),
		"POST /approve/{namespace}/{name}": s.withDiagnosis(s.approve), "POST /refuse/{namespace}/{name}": s.withDiagnosis(s.refuse),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { // changes something by the right of the user, and shows the Diagnosis
			d, err := act(r)
			if err != nil {
				s.makePage(r, func(*http.Request) (ui.Page, error) { return ui.Page{}, err }).write(w)
				return
			}
			http.Redirect(w, r, path.Join("/diagnosis", d.Namespace, d.Name), http.StatusSeeOther)
		})
	}
	mux.HandleFunc("GET /events", s.serveEvents)
	for name, kind := range map[string]string{"style.css": "text/css", "live.js": "text/javascript"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			text, err := ui.Asset(name)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			_, _ = w.Write(text) // the browser has gone
		})
	}
	return mux
}

// sharedPage is a page that is being made. Browsers that ask for it at the same time wait for one page, begun after the last of them asked.
type sharedPage struct {
	waiting int // below the lock of the server

	making sync.Mutex
	began  time.Time
	made   madePage
}

// madePage is a page as it is sent.
type madePage struct {
	status int
	body   []byte
}

// servePage answers a request for a page.
func (s *pageServer) servePage(w http.ResponseWriter, r *http.Request, page func(*http.Request) (ui.Page, error)) {
	asked, address := time.Now(), r.URL.Path
	s.mu.Lock()
	p := s.shared[address]
	if p == nil {
		p = &sharedPage{}
		s.shared[address] = p
	}
	p.waiting++
	s.mu.Unlock()
	made := p.makePage(asked, func() (madePage, bool) {
		m := s.makePage(r, page)
		return m, r.Context().Err() == nil // a page for a browser that has gone is for no other
	})
	s.mu.Lock()
	if p.waiting--; p.waiting == 0 {
		delete(s.shared, address)
	}
	s.mu.Unlock()
	made.write(w)
}

// makePage makes the page, unless another request has had it made since this one asked.
func (p *sharedPage) makePage(asked time.Time, do func() (made madePage, ok bool)) madePage {
	p.making.Lock()
	defer p.making.Unlock()
	if p.began.After(asked) {
		return p.made
	}
	began := time.Now()
	made, ok := do()
	if ok {
		p.began, p.made = began, made
	}
	return made
}

// makePage makes a page, or its error as one.
func (s *pageServer) makePage(r *http.Request, page func(*http.Request) (ui.Page, error)) madePage {
	version, _ := s.reported() // before the state is read
	p, err := page(r)
	status := http.StatusOK
	if err != nil {
		status = http.StatusBadGateway
		switch {
		case errors.Is(err, errMissing):
			status = http.StatusNotFound
		case errors.Is(err, verb.ErrRefused):
			status = http.StatusForbidden
		}
		p = ui.Page{Title: "kubediag", Made: time.Now(), State: ui.Warn, Verdict: err.Error()}
	}
	p.Version, p.Language, p.Token = version, s.options.status.language, s.form
	for _, item := range []ui.MenuItem{ // the pages that have no name in their address
		{Link: "/", Text: "Now"}, {Link: "/nodes", Text: "Nodes"}, {Link: "/approve", Text: "To approve"}, {Link: "/policies", Text: "Policies"},
		{Link: "/triggers", Text: "Triggers"},
	} {
		item.Text, item.Current = p.Language.Word(item.Text), item.Link == r.URL.Path
		p.Menu = append(p.Menu, item)
	}
	var b bytes.Buffer
	if err := ui.Write(&b, p); err != nil {
		return madePage{http.StatusInternalServerError, []byte(err.Error())}
	}
	return madePage{status, b.Bytes()}
}

func (m madePage) write(w http.ResponseWriter) {
	if m.status == http.StatusInternalServerError {
		http.Error(w, string(m.body), m.status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(m.status)
	_, _ = w.Write(m.body) // the browser has gone
}

// reported is the number of changes that were reported, and is closed by the next one.
func (s *pageServer) reported() (version int, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, s.changed
}

// serveEvents sends the version of the state, at first and after each change: a page that was made before has missed one. It sends a comment
// at each interval of keepAlive, so that the connection stays.
func (s *pageServer) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	version, changed := s.reported()
	for line := fmt.Sprintf("data: %d\n\n", version); ; {
		if _, err := w.Write([]byte(line)); err != nil || stream.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
			version, changed = s.reported()
			line = fmt.Sprintf("data: %d\n\n", version)
		case <-ticker.C:
			line = ": still here\n\n"
		}
	}
}

// reportChanges reports changes to all pages, until ctx ends: those that the watches see, and now and then others that there may be.
func (s *pageServer) reportChanges(ctx context.Context, changes <-chan struct{}) {
	ticker := time.NewTicker(problemsInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changes:
		}
		s.mu.Lock()
		close(s.changed)
		s.changed = make(chan struct{})
		s.version++
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(changeInterval):
		}
	}
}
