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
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
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
	status statusOptions
	port   int
}

func newUICommand(conn *connection) *cobra.Command {
	o := &uiOptions{status: statusOptions{connection: conn}}
	cmd := &cobra.Command{
		Use:   "ui [pod/NAME]",
		Short: "Serve pages for the browser of this machine: faults, Diagnoses, plans to approve",
		Long: "ui serves pages on 127.0.0.1, until Ctrl-C. They are drawn again when something changes. It acts with your rights only,\n" +
			"and needs no more than status does. It prints an address with a token that works once, for one browser.\n\n" +
			"With pod/NAME, the address leads to the faults of that pod. --namespace narrows the pages to one namespace.",
		Example: "  kubectl kubediag ui\n  kubectl kubediag ui pod/web-0 -n shop",
		Args:    verb.Takes("pod/NAME", 0),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.runUI(cmd, args) },
	}
	cmd.Flags().StringVar(&o.status.home, "kubediag-namespace", defaultHome, "the namespace that kubediag is installed in")
	cmd.Flags().IntVar(&o.port, "port", 0, "the port (default: any that is free)")
	ui.AddLanguage(cmd, &o.status.language)
	return cmd
}

// runUI serves pages until ctx ends.
func (o *uiOptions) runUI(cmd *cobra.Command, args []string) error {
	apiClient, err := o.status.newClient()
	if err != nil {
		return err
	}
	s := &pageServer{options: o, api: apiClient, changed: make(chan struct{})}
	if o.status.set.Changed("namespace") {
		s.namespace = apiClient.namespace
	}
	start := "/"
	if len(args) == 1 {
		kind, name, _ := strings.Cut(args[0], "/")
		if kind != "pod" || name == "" {
			return fmt.Errorf("%q: must be pod/NAME", args[0])
		}
		start = path.Join("/pod", apiClient.namespace, name)
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
	go s.followChanges(ctx)
	server := &http.Server{
		Handler: guard, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeaderBytes, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := verb.Write(cmd.OutOrStdout(), fmt.Sprintf("Open http://%s%s?token=%s\nCtrl-C ends.\n", guard.host, start, guard.token)); err != nil {
		return err
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages: %w", err)
	}
	return nil
}

// pageServer makes pages with the rights of a user.
type pageServer struct {
	options   *uiOptions
	api       *client
	namespace string // empty: all
	form      string // the token of forms

	mu      sync.Mutex
	changed chan struct{} // is closed when something changes

	reading sync.Mutex // one page reads the state at a time
	began   time.Time  // when the last reading did
	last    *statusReport
	lastErr error
}

func (s *pageServer) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range map[string]func(*http.Request) (ui.Page, error){
		"GET /{$}": s.nowPage, "GET /fault/{namespace}/{name}": s.faultPage, "GET /pod/{namespace}/{name}": s.podPage,
		"GET /diagnosis/{namespace}/{name}": s.diagnosisPage, "GET /nodes": s.nodesPage, "GET /node/{name}": s.nodePage, "GET /approve": s.approvePage,
		"GET /policies": s.policiesPage, "GET /triggers": s.triggersPage,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.writePage(w, r, page) })
	}
	for pattern, act := range map[string]func(*http.Request) (*v1.Diagnosis, error){
		"POST /plan/{namespace}/{name}": s.planPod, "POST /repair/{namespace}/{name}": s.withDiagnosis(s.repair),
		"POST /approve/{namespace}/{name}": s.withDiagnosis(s.approve), "POST /refuse/{namespace}/{name}": s.withDiagnosis(s.refuse),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.act(w, r, act) })
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

// menu leads to the pages that have no name in their address.
func (s *pageServer) menu(current string) (menu []ui.MenuItem) {
	for _, item := range []ui.MenuItem{
		{Link: "/", Text: "Now"}, {Link: "/nodes", Text: "Nodes"}, {Link: "/approve", Text: "To approve"}, {Link: "/policies", Text: "Policies"},
		{Link: "/triggers", Text: "Triggers"},
	} {
		item.Text, item.Current = s.options.status.language.Word(item.Text), item.Link == current
		menu = append(menu, item)
	}
	return menu
}

// writePage writes a page, or its error as one.
func (s *pageServer) writePage(w http.ResponseWriter, r *http.Request, page func(*http.Request) (ui.Page, error)) {
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
	p.Language, p.Token, p.Menu = s.options.status.language, s.form, s.menu(r.URL.Path)
	var b bytes.Buffer
	if err := ui.Write(&b, p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the browser has gone
}

// act changes something by the right of the user, and shows the Diagnosis.
func (s *pageServer) act(w http.ResponseWriter, r *http.Request, do func(*http.Request) (*v1.Diagnosis, error)) {
	d, err := do(r)
	if err != nil {
		s.writePage(w, r, func(*http.Request) (ui.Page, error) { return ui.Page{}, err })
		return
	}
	http.Redirect(w, r, path.Join("/diagnosis", d.Namespace, d.Name), http.StatusSeeOther)
}

// serveEvents sends an event for each change, and a comment at each interval of keepAlive, so that the connection stays.
func (s *pageServer) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for line := ": hello\n\n"; ; {
		if _, err := w.Write([]byte(line)); err != nil || stream.Flush() != nil {
			return
		}
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
			line = "data: changed\n\n"
		case <-ticker.C:
			line = ": still here\n\n"
		}
	}
}

// dropContents frees all of an object but the fields by which the watcher knows it and its changes.
func dropContents(o runtime.Object) {
	of := metadata(o)
	kept := metav1.ObjectMeta{UID: of.GetUID(), ResourceVersion: of.GetResourceVersion()}
	switch of := o.(type) {
	case *v1.MountFault:
		*of = v1.MountFault{ObjectMeta: kept}
	case *v1.Diagnosis:
		*of = v1.Diagnosis{ObjectMeta: kept}
	}
}

// followChanges reports changes of faults and Diagnoses to all pages, until ctx ends. If the user may not watch, it reports now and then.
func (s *pageServer) followChanges(ctx context.Context) {
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // one is reported soon
		}
	}
	for _, list := range []func() ctrlclient.ObjectList{
		func() ctrlclient.ObjectList { return &v1.MountFaultList{} }, func() ctrlclient.ObjectList { return &v1.DiagnosisList{} },
	} {
		go func() {
			w := &objectWatcher{
				server: s.api.server, newList: list, options: []ctrlclient.ListOption{ctrlclient.InNamespace(s.namespace)},
				connectionLost: func(error) { changed() },
			}
			_ = w.followChanges(ctx, func(now objectChange) error { // an error is that of a right: the page names it
				dropContents(now.object)
				changed()
				return nil
			})
		}()
	}
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
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(changeInterval):
		}
	}
}
