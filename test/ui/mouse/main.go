// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command mouse is a reader before a page: a browser that does the steps on its standard input, one a line, and answers each with "ok" or
// the reason why it could not.
//
//	open ADDRESS    goes to an address
//	await TEXT      waits until the page has a text, without a load by the reader
//	click SELECTOR  clicks the first such element, and waits until another page is there
//
// A test of another module can so have a browser without being built with one.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// stepTimeout bounds a step.
const stepTimeout = 3 * time.Minute

func main() {
	if err := follow(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mouse:", err)
		os.Exit(1)
	}
}

// follow does the steps in one browser.
func follow(ctx context.Context) error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox, chromedp.WSURLReadTimeout(stepTimeout))
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	defer stop()
	ctx, stop = chromedp.NewContext(ctx)
	defer stop()
	if err := chromedp.Run(ctx); err != nil {
		return fmt.Errorf("start the browser: %w", err)
	}
	steps := bufio.NewScanner(os.Stdin)
	for steps.Scan() {
		answer := "ok"
		if err := do(ctx, steps.Text()); err != nil {
			var page string
			_ = chromedp.Run(ctx, chromedp.Evaluate(`location.href + " " + document.body.innerText`, &page)) // there may be none
			answer = strconv.Quote(fmt.Sprintf("%v: %s", err, page))
		}
		fmt.Println(answer)
	}
	return steps.Err()
}

// do does one step.
func do(ctx context.Context, step string) error {
	ctx, stop := context.WithTimeout(ctx, stepTimeout)
	defer stop()
	verb, argument, _ := strings.Cut(step, " ")
	switch verb {
	case "open":
		return chromedp.Run(ctx, chromedp.Navigate(argument), chromedp.WaitVisible("main"))
	case "await":
		return await(ctx, "document.body.innerText.includes("+strconv.Quote(argument)+")")
	case "click":
		var before string
		if err := chromedp.Run(ctx, chromedp.Location(&before), chromedp.Click(argument)); err != nil {
			return err
		}
		// The context of the old page may end while it is asked.
		for await(ctx, "location.href !== "+strconv.Quote(before)+` && document.querySelector("main") !== null`) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return nil
	}
	return fmt.Errorf("there is no step %q", step)
}

// await waits until a condition holds on the page.
func await(ctx context.Context, condition string) error {
	return chromedp.Run(ctx, chromedp.Evaluate(`new Promise(done => { const look = () => `+condition+` ? done() : setTimeout(look, 50); look(); })`, nil,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}
