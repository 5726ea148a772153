// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Bounds with 5,000 faults: of the time that the server computes for a page, so that other work on the machine counts less, of a page, and of
// the memory of the server.
const (
	faultsOfSpeed = 5000
	mostComputed  = 150 * time.Millisecond
	mostPageBytes = 300_000
	mostMemory    = 60 << 20
	openPages     = 10
)

// computed is the time that a process has computed so far, in steps of 10 ms.
func computed(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memoryOf is the memory of a process: VmRSS is that of now, VmHWM the most that it has had.
func memoryOf(t *testing.T, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestSpeed: with 5,000 faults a page is small, computed in time, and ten open pages that are all drawn again take little memory.
func TestSpeed(t *testing.T) {
	s := newSite(t, "en")
	s.api.change(func() {
		for i := range faultsOfSpeed {
			f := mountFault([]string{"StaleSubPath", "HungMount", "DisconnectedFUSE"}[i%3], "NextStart", "Safe", fmt.Sprintf("web%d-%d", i%500, i))
			f["metadata"].(object)["name"], f["status"].(object)["driver"] = fmt.Sprint("f-", i), fmt.Sprintf("driver-%d.example.com", i%300)
			s.api.faults = append(s.api.faults, f)
		}
	})
	var painted, answered []time.Duration
	size, before := 0, computed(t, s.pid)
	const loads = 40
	for range loads {
		var paint, answer float64
		s.run(t, chromedp.Navigate(s.origin+"/"), chromedp.WaitVisible("main"))
		s.await(t, `performance.getEntriesByName("first-contentful-paint").length > 0`)
		s.run(t, chromedp.Evaluate(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &paint),
			chromedp.Evaluate(`performance.getEntriesByType("navigation")[0].decodedBodySize`, &size),
			chromedp.Evaluate(`performance.getEntriesByType("navigation")[0].responseEnd`, &answer))
		painted = append(painted, time.Duration(paint*float64(time.Millisecond)))
		answered = append(answered, time.Duration(answer*float64(time.Millisecond)))
	}
	slices.Sort(painted)
	slices.Sort(answered)
	each := (computed(t, s.pid) - before) / loads
	t.Logf("%d faults: first paint after %s in the middle, p95 %s; the page is there after %s in the middle, p95 %s; the server computes %s; %d bytes",
		faultsOfSpeed, painted[loads/2], painted[loads*95/100], answered[loads/2], answered[loads*95/100], each, size)
	if each > mostComputed || size > mostPageBytes {
		t.Errorf("%d faults: %s of computing and %d bytes for a page, at most %s and %d", faultsOfSpeed, each, size, mostComputed, mostPageBytes)
	}
	pages := []context.Context{s.browser}
	for range openPages - 1 {
		ctx, stop := chromedp.NewContext(s.browser)
		t.Cleanup(stop)
		pages = append(pages, ctx)
		s.run(t, chromedp.ActionFunc(func(context.Context) error {
			return chromedp.Run(ctx, chromedp.Navigate(s.origin+"/"), chromedp.WaitVisible("main"))
		}))
	}
	s.api.change(func() { s.api.faults = append(s.api.faults, mountFault("VolumeIOError", "Now", "Person", "new-0")) })
	for _, s.browser = range pages { // more than a browser has connections to one host
		s.await(t, `document.body.innerText.includes("VolumeIOError") && document.querySelector("#live").textContent === "● live"`)
	}
	used := memoryOf(t, s.pid, "VmRSS")
	t.Logf("memory of the server with %d pages: %d MiB, %d of them of the program's file; at its peak %d MiB", openPages, used>>20, memoryOf(t, s.pid, "RssFile")>>20, memoryOf(t, s.pid, "VmHWM")>>20)
	if used > mostMemory {
		t.Errorf("the server has used %d MiB, at most %d", used>>20, mostMemory>>20)
	}
}

// TestANewFaultIsSeenSoon: a fault is on an open page soon after the API server has it.
func TestANewFaultIsSeenSoon(t *testing.T) {
	s := newSite(t, "en")
	s.await(t, `document.querySelector("#live").textContent === "● live"`)
	var took []time.Duration
	for i := range 5 {
		began := time.Now()
		code := []string{"HungMount", "StaleSubPath", "DisconnectedFUSE", "VolumeIOError", "HeldMount"}[i]
		s.api.change(func() {
			s.api.faults = append(s.api.faults, mountFault(code, "Now", "Person", strings.Repeat("w", i+1)))
		})
		s.await(t, `document.querySelector("main").innerText.includes("`+code+`")`)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("a new fault is on the page after %s", took)
	if took[0] > time.Second {
		t.Errorf("a new fault is never on the page within a second: %s", took)
	}
}

// TestPolicyHolds: the browser loads no frame of a page, and runs no script that is not its own.
func TestPolicyHolds(t *testing.T) {
	s := newSite(t, "en")
	var ran bool
	s.run(t, chromedp.Evaluate(`(() => { const e = document.createElement("script"); e.textContent = "window.ran = true"; document.body.append(e); return window.ran === true })()`, &ran))
	if ran {
		t.Error("a script in the page ran")
	}
	other := http.NewServeMux()
	other.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!doctype html><title>other</title><iframe src="%s/"></iframe><form method="post" action="%s/plan/shop/web-0"><button>x</button></form>`, s.origin, s.origin)
	})
	address := serve(t, other)
	var text string
	s.run(t, chromedp.Navigate(address), chromedp.Evaluate(`document.querySelector("button").click()`, nil), chromedp.WaitVisible("pre"), chromedp.Text("body", &text))
	if !strings.Contains(text, "this address is not served") {
		t.Errorf("a form of another site is answered: %s", text)
	}
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	if len(s.api.asked) > 0 {
		t.Errorf("another site has asked for %q", s.api.asked)
	}
}
