// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// axe is the checker of axe-core, which make test-ui installs.
var axe = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("../../bin/ui/node_modules/axe-core/axe.min.js") })

// checkAccess has axe-core look at the page that is open: no rule of WCAG 2.2 A and AA may be broken, and no rule of good practice.
func (s *site) checkAccess(t *testing.T, name string) {
	t.Helper()
	script, err := axe()
	if err != nil {
		t.Fatalf("axe-core is not there, make test-ui installs it: %v", err)
	}
	const run = `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r =>
		r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).join(" ")).concat(r.passes.length < 10 ? ["axe-core has checked almost nothing"] : []))`
	var broken []string
	s.run(t, chromedp.Evaluate(string(script)+";0", nil), chromedp.Evaluate(run, &broken, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
	if len(broken) > 0 {
		t.Errorf("%s: %s", name, strings.Join(broken, "\n"))
	}
}

// TestKeyboard: with the keys alone, a reader skips to the findings, comes to each link, button and part to open, and sees where the focus is.
func TestKeyboard(t *testing.T) {
	s := newSite(t, "en")
	s.api.change(func() { s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0")} })
	s.run(t, chromedp.Navigate(s.origin+"/pod/shop/web-0"), chromedp.WaitVisible("summary"))
	var expected int
	s.run(t, chromedp.Evaluate(`document.querySelectorAll("a[href], button, summary, [tabindex='0']").length`, &expected))
	reached := map[string]bool{}
	for range expected + 2 {
		var at struct {
			Name, Outline string
		}
		s.run(t, chromedp.KeyEvent("\t"), chromedp.Evaluate(`(e => ({Name: e.tagName + " " + e.textContent.slice(0, 40), Outline: getComputedStyle(e).outlineStyle}))(document.activeElement)`, &at))
		if strings.HasPrefix(at.Name, "BODY") {
			continue
		}
		reached[at.Name] = true
		if at.Outline == "none" {
			t.Errorf("no focus is seen on %s", at.Name)
		}
		if len(reached) == 1 && at.Name != "A Skip to the findings" {
			t.Errorf("the first is %q", at.Name)
		}
	}
	if len(reached) != expected {
		t.Errorf("the keys reach %d of %d: %v", len(reached), expected, reached)
	}
	s.run(t, chromedp.Evaluate(`document.querySelector("summary").focus()`, nil), chromedp.KeyEvent("\r"))
	s.await(t, `document.querySelector("details").open`)
}

// TestPrint: a page on paper has its evidence, though it is folded on the screen.
func TestPrint(t *testing.T) {
	s := newSite(t, "en")
	s.api.change(func() { s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0")} })
	s.run(t, chromedp.Navigate(s.origin+"/pod/shop/web-0"), chromedp.WaitVisible("summary"))
	var before, after float64
	const height = `document.querySelector("details").getBoundingClientRect().height`
	var pdf []byte
	s.run(t, chromedp.Evaluate(height, &before), emulation.SetEmulatedMedia().WithMedia("print"), chromedp.Evaluate(height, &after), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		pdf, _, err = page.PrintToPDF().Do(ctx)
		return err
	}))
	if after <= before || len(pdf) < 1000 {
		t.Errorf("the evidence is %v high on the screen and %v on paper; %d bytes of PDF", before, after, len(pdf))
	}
}
