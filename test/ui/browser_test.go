// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// plugin builds the program once, as it ships. KUBEDIAG_UI_PROGRAM is another one in its place, to compare both.
var plugin = sync.OnceValues(func() (string, error) {
	if other := os.Getenv("KUBEDIAG_UI_PROGRAM"); other != "" {
		return other, nil
	}
	name, err := filepath.Abs("../../bin/ui/kubectl-kubediag")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-C", "../..", "-ldflags=-s -w", "-o", name, "./cmd/kubectl-kubediag")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return name, nil
})

// site is a served site, its API server and a browser on it.
type site struct {
	api     *fakeAPI
	server  *httptest.Server // of api
	origin  string
	pid     int // of the server of pages
	browser context.Context
	// complaints are errors of scripts, violations of the policy and dialogs.
	mu         sync.Mutex
	complaints []string
}

func newAPI(t *testing.T) (*fakeAPI, *httptest.Server) {
	t.Helper()
	api := &fakeAPI{t: t, changed: make(chan struct{})}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	t.Cleanup(func() { api.change(func() {}) }) // ends its watches
	return api, server
}

// serve serves another site, and returns its address.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// newSite serves pages in a language and opens the first one.
func newSite(t *testing.T, language string, flags ...string) *site {
	t.Helper()
	program, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.api, s.server = newAPI(t)
	address := s.serve(t, program, []string{"DISPLAY=", "WAYLAND_DISPLAY="}, append([]string{"--lang=" + language}, flags...)...)
	s.open(t)
	s.run(t, chromedp.Navigate(address), chromedp.WaitVisible("main"))
	return s
}

// serve starts the server of pages, and returns the address that it prints.
func (s *site) serve(t *testing.T, program string, env []string, flags ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, append([]string{"ui", "--server=" + s.server.URL}, flags...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was interrupted
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(strings.TrimSpace(line), "Open ")
	s.origin, _, _ = strings.Cut(address, "/?")
	return address
}

// open starts a browser.
func (s *site) open(t *testing.T) {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(time.Minute))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	s.browser = ctx
	if err := chromedp.Run(ctx); err != nil { // the browser ends with the context of its first call
		t.Fatal(err)
	}
	chromedp.ListenTarget(ctx, func(event any) {
		text := ""
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text = e.ExceptionDetails.Error()
		case *page.EventJavascriptDialogOpening:
			text = "dialog " + e.Message
		case *log.EventEntryAdded:
			text = e.Entry.Text
		}
		if text != "" && !strings.Contains(text, "favicon") && !strings.Contains(text, "404") {
			s.mu.Lock()
			s.complaints = append(s.complaints, text)
			s.mu.Unlock()
		}
	})
	s.run(t, log.Enable())
}

func (s *site) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	ctx, stop := context.WithTimeout(s.browser, 2*time.Minute)
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// await waits until a condition holds on the page.
func (s *site) await(t *testing.T, condition string) {
	t.Helper()
	s.run(t, chromedp.Evaluate(`new Promise(done => { const look = () => `+condition+` ? done() : setTimeout(look, 20); look(); })`, nil,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

// text is the text of the page.
func (s *site) text(t *testing.T) (text string) {
	t.Helper()
	s.run(t, chromedp.Text("body", &text))
	return text
}

// shoot takes a picture of the page at a width and in a scheme, and finds a page that is wider than its window.
func (s *site) shoot(t *testing.T, name, scheme string, width int) {
	t.Helper()
	var picture []byte
	var wide int
	s.run(t, chromedp.EmulateViewport(int64(width), 900), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Evaluate("document.documentElement.scrollWidth", &wide), chromedp.FullScreenshot(&picture, 100))
	if wide > width {
		t.Errorf("%s is %d pixels wide in a window of %d", name, wide, width)
	}
	if err := os.WriteFile(fmt.Sprintf("../../bin/ui/%s-%s-%d.png", name, scheme, width), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *site) checkComplaints(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.complaints) > 0 {
		t.Errorf("the browser complains: %q", s.complaints)
	}
}

// planFormat is that of package v1.
const planFormat = "kubediag plan 2\n"

// hashOf is the hash of the changes of a plan.
func hashOf(changes ...string) string {
	sum := sha256.Sum256([]byte(planFormat + strings.Join(changes, "\n") + "\n"))
	return hex.EncodeToString(sum[:])
}

// longestName is how long a name of Kubernetes may be.
const longestName = 253

// TestPages looks at each page in both languages and schemes at four widths, up to 4K.
func TestPages(t *testing.T) {
	for _, language := range []string{"en", "zh"} {
		s := newSite(t, language)
		evil := `<img src=x onerror=alert(1)>` + "\u202e"
		evil += strings.Repeat("n", longestName-len(evil))
		changes := []string{`boot "b"`, `Unmount mount "/m"`}
		s.api.change(func() {
			s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0"), mountFault("HungMount", "Now", "Person", evil)}
			s.api.diagnoses = []object{waiting(hashOf(changes...), changes...)}
		})
		for name, address := range map[string]string{"now": "/", "fault": "/fault/shop/stalesubpath-5", "pod": "/pod/shop/web-0", "diagnosis": "/diagnosis/shop/web-waits", "well": "/pod/shop/none",
			"nodes": "/nodes", "node": "/node/worker-1", "approve": "/approve", "policies": "/policies", "triggers": "/triggers"} {
			s.run(t, chromedp.Navigate(s.origin+address), chromedp.WaitVisible("main"))
			for _, scheme := range []string{"light", "dark"} {
				for _, width := range []int{400, 3840, 2560, 1280} {
					s.shoot(t, language+"-"+name, scheme, width)
				}
				s.checkAccess(t, language+"-"+name+"-"+scheme)
			}
			want := map[string][]string{
				"now": {"StaleSubPath", `\u202e`, "stale-subpaths"}, "fault": {"csi.example.com"}, "pod": {"StaleSubPath"}, "diagnosis": {"auto-recover", "Unmount"},
				"well": {"No fault is known of shop/none."}, "nodes": {"worker-1", "worker-20"}, "node": {"ConfigMap conf", "StaleSubPath"}, "approve": {"shop/web-waits"},
				"policies": {"stale-subpaths", "paused"}, "triggers": {"nightly"},
			}[name]
			text := s.text(t)
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("%s in %s has not %q:\n%s", name, language, part, text)
				}
			}
		}
		s.checkComplaints(t)
	}
}

// TestAFaultComesAndGoes: an open page shows a fault that comes, and that it is gone, without the reader.
func TestAFaultComesAndGoes(t *testing.T) {
	s := newSite(t, "en")
	s.await(t, `document.body.innerText.includes("No fault is known in all namespaces") && document.querySelector("#live").textContent === "● live"`)
	s.api.change(func() { s.api.faults = []object{mountFault("HungMount", "Now", "Person", "web-0")} })
	s.await(t, `document.querySelector("main a")?.textContent === "HungMount"`)
	s.run(t, chromedp.Click("main a"), chromedp.WaitVisible("summary"), chromedp.Click("summary"))
	s.await(t, `document.querySelector("details").open && document.body.innerText.includes("its link count is 0")`)
	s.api.change(func() { s.api.faults = []object{withEvidence(s.api.faults[0], "it has a new fact")} })
	s.await(t, `document.querySelector("details").open && document.body.innerText.includes("it has a new fact")`)
	s.run(t, chromedp.Click(`nav a[href="/"]`), chromedp.WaitVisible("main a"))
	s.api.change(func() { s.api.faults = nil })
	s.await(t, `document.body.innerText.includes("No fault is known in all namespaces")`)
	s.checkComplaints(t)
}

// TestApproveWithTheMouse: from the first page to the approval, by clicks alone.
func TestApproveWithTheMouse(t *testing.T) {
	s := newSite(t, "en")
	changes := []string{`boot "b"`, `Unmount mount "/m"`}
	s.api.change(func() { s.api.diagnoses = []object{waiting(hashOf(changes...), changes...)} })
	s.await(t, `document.querySelector("main a")?.textContent === "shop/web-waits"`)
	s.run(t, chromedp.Click("main a"), chromedp.WaitVisible(`form[action^="/approve/"] button`))
	answer, err := chromedp.RunResponse(s.browser, chromedp.Click(`form[action^="/approve/"] button`))
	if err != nil || answer.Status != http.StatusOK || answer.URL != s.origin+"/diagnosis/shop/web-waits" {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	s.api.mu.Lock()
	asked := slices.Clone(s.api.asked)
	s.api.mu.Unlock()
	if want := []string{"POST /apis/diagnosis.kubediag.org/v1/namespaces/shop/recoveryapprovals"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	s.checkComplaints(t)
}

// TestHealWithTheMouse: from a fault to its plan and its repair, by clicks alone.
func TestHealWithTheMouse(t *testing.T) {
	s := newSite(t, "en")
	s.api.change(func() { s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0")} })
	s.run(t, chromedp.Navigate(s.origin+"/pod/shop/web-0"), chromedp.WaitVisible(`form[action="/plan/shop/web-0"] button`))
	for _, step := range []struct{ button, leads string }{
		{`form[action="/plan/shop/web-0"] button`, "/diagnosis/shop/web-plan"}, {`form[action="/repair/shop/web-plan"] button`, "/diagnosis/shop/web-repair"},
	} {
		answer, err := chromedp.RunResponse(s.browser, chromedp.Click(step.button))
		if err != nil || answer.Status != http.StatusOK || answer.URL != s.origin+step.leads {
			t.Fatalf("%s: answer %+v, error %v", step.button, answer, err)
		}
	}
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	if want := []string{"Plan <nil>", "Recover " + hashOf(`boot "b"`, `Unmount mount "/m"`)}; !slices.Equal(s.api.asked, want) {
		t.Errorf("asked for %q, want %q", s.api.asked, want)
	}
	s.checkComplaints(t)
}

// TestFile: a page in a file with 5,000 faults of an attacker runs nothing, loads nothing and is no larger than 300 kB.
func TestFile(t *testing.T) {
	program, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 300, 5000} {
		api, server := newAPI(t)
		for i := range n {
			f := mountFault("HungMount", "Now", "Person", fmt.Sprintf("web%d</style><script>alert(1)</script>", i))
			f["status"].(object)["driver"] = fmt.Sprintf("driver-%d</b><script>alert(2)</script>\u202e", i)
			api.faults = append(api.faults, f)
		}
		content, _ := exec.CommandContext(t.Context(), program, "status", "-o", "html", "--server="+server.URL).Output() // it ends with 1: faults
		name := filepath.Join(t.TempDir(), "status.html")
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
		s := &site{}
		s.open(t)
		var scripts, loaded, rows int
		s.run(t, chromedp.Navigate("file://"+name), chromedp.WaitVisible("main"), chromedp.Evaluate(`document.scripts.length`, &scripts),
			chromedp.Evaluate(`performance.getEntriesByType("resource").length`, &loaded), chromedp.Evaluate(`document.querySelectorAll("section tbody")[0]?.rows.length ?? 0`, &rows))
		if scripts != 0 || loaded != 0 || len(content) > 300_000 || n > 0 && rows != min(n, 200) {
			t.Errorf("%d faults: %d scripts, %d files loaded, %d bytes, %d rows", n, scripts, loaded, len(content), rows)
		}
		s.shoot(t, fmt.Sprintf("file-%d", n), "light", 1280)
		s.checkComplaints(t)
	}
}
